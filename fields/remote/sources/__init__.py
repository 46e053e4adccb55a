"""What holds files, as a source of items."""
