"""Tasks: single-label or multi-label.

`base` has the protocol, which every package may use. `choose` finds the task for settings and items, or for a model. A
new task is one file here and a line in `choose`.
"""
