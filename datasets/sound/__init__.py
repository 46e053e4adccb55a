"""datasets.sound."""
