"""Sources of items: one file each for a format of labels, a demo, or public data sets, registered in `base.SOURCES`."""
