"""learners.training."""
