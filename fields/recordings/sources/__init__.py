"""Formats of labels, one file each."""
