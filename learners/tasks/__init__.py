"""Tasks: single-label or multi-label.

`base` has the protocol and imports no other package, so every package may use it. `choose` finds the task for
settings or for a model. A new task is one file here and a line in `choose`.
"""
