"""Builds the item table of a run: reads, checks, groups and splits the files, and renders signals."""
