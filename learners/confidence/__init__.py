"""learners.confidence."""
