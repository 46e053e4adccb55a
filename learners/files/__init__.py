"""Locks and replacement of folders, checked JSON, and paths shortened for sharing."""
