"""Labelled spans of recordings: the formats of sound editors, in and out."""
