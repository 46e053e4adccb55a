"""What every opening of a mutant needs, imported once before processes are forked."""

import datasets.cache
import datasets.strain_recipe
import datasets.table
import learners.flags
import learners.predictor  # noqa: F401
