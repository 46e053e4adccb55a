"""What every opening of a mutant needs, imported once before processes are forked."""

from importlib import import_module

for name in ("datasets.table", "datasets.strain_recipe", "learners.flags", "learners.predictor"):
    import_module(name)
