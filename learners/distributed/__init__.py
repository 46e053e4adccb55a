"""learners.distributed."""
