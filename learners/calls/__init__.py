"""Ways to call ``learners.predict``, one file each: what is predicted, and the flags for it."""
