"""Fields: what some users need and others never meet, a folder each, which can be deleted.

A file of a field that is named after a group of a registry (`steps`, `sources`, `calls`, `outputs`, …), or a folder of
several, registers what it adds as soon as something of this group is looked up (`datasets.core.registry`). Nothing outside
of this folder imports a field, and no field another.
"""

#: What shows that data, or a model, need a field, for the sentence that names it where its folder is left out: patterns of names
#: of files, of columns of tables, and of bodies of networks (`datasets.core.registry.left_out`).
SIGNS = {
    "embeddings": {
        "file": ("*.birdnet.embeddings.txt", "*.npz"),
        "column": ("embedding",),
        "body": ("embedding/*",),
    },
}
