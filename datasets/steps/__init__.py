"""Reading as a list of steps: each takes the items and returns others (`datasets.steps.reading` is the list)."""
