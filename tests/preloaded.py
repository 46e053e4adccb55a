"""What every opening of a mutant needs, imported once before processes are forked."""

from importlib import import_module

for name in (
    "datasets.tables.table",
    "datasets.strain.recipe",
    "learners.flags",
    "learners.prediction.predictor",
):
    import_module(name)
