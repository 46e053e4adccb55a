"""datasets.loaders."""
