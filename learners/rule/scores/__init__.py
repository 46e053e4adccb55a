"""Out-of-distribution scores, one file each; higher means more known."""
