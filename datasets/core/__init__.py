"""What everything else stands on, file by file: each is imported by its own name."""
