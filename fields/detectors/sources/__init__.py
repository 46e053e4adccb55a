"""Formats of labels and public data, one file each."""
