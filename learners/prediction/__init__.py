"""learners.prediction."""
