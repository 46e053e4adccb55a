"""datasets.pictures."""
