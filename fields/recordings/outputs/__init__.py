"""Formats of predictions, one file each."""
