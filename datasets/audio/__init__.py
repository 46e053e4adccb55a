"""Reads sound files safely and renders mel spectrograms."""
