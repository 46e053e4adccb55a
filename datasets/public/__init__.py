"""datasets.public."""
