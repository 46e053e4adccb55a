"""datasets.drawings."""
