"""learners.model."""
