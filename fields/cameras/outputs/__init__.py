"""Formats of predictions: a data package, and the JSON of a detector."""
