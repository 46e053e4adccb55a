"""Fields: what some users need and others never meet, a folder each, which can be deleted.

A file of a field that is named after a group of a registry (`steps`, `sources`, `calls`, `outputs`, …), or a folder of
several, registers what it adds as soon as something of this group is looked up (`datasets.core.registry`). Nothing outside
of this folder imports a field, and no field another.
"""

#: How the words of a command begin, or end, that a field reads, by its name: an error names it where it is left out.
READS = {
    "remote": r"(?i)hf:|(s3a?|https?|hf|gs|gcs|az|abfss?|sftp|zip|tar|parquet)://|.*\.(zip|tar|tar\.gz|tgz|tar\.bz2|tbz2|tar\.xz|txz|parquet)$",
}
