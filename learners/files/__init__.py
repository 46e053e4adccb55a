"""learners.files."""
