"""A model on files from elsewhere: its figures where they have labels, an estimate of them where they have none."""
