"""learners.evaluation."""
