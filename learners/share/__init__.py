"""A model folder -> the hub, or one archive for somebody who has nothing of this project."""
