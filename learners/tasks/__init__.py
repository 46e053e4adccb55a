"""What a model learns to say of an item: one class, several labels, or a class of a tree.

`base` has the protocol and imports no room, so that those below may be given a task; `choose` finds
the task of a run's settings and of a model. A further task is one file here, and a line in `choose`.
"""
