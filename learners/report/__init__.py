"""learners.report."""
