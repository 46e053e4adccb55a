"""A model folder -> a web page. Knows the public names of ``learners`` only."""
