"""Tasks: one class, several labels, or a class tree.

`base` has the protocol and imports no other package, so that all may take a task; `choose` finds the task of
settings and of a model. A new task is one file here and a line in `choose`.
"""
