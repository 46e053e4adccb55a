"""datasets.strain."""
