"""A model folder -> one archive for somebody who has nothing of this project."""
