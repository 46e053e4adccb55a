"""Writes the figures of a run or an evaluation as one HTML page that needs no network."""
