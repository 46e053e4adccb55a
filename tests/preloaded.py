"""Imports that nearly every test program needs, done once before processes are forked."""

import atexit
import os
from importlib import import_module, util

atexit.register(os._exit, 0)  # of the server; to free all objects takes seconds
for name in (
    "datasets.steps.reading",
    "datasets.strain.settings",
    "learners.cli.flags",
    "learners.inference.predictor",
    "learners.runs.finetuning",
    "learners.runs.stages",
):
    import_module(name)
if util.find_spec("distributed"):
    import_module("distributed")
