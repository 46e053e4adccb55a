"""datasets.demos."""
