"""learners.networks."""
