"""learners.runs."""
