"""datasets.tables."""
