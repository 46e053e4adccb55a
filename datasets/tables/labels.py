"""Labels: one rule for folders, tables, corrections and the classes of a model.

A label is text as it stands: "nan", "None" and "NA" are labels like others, only an empty cell is
none. It is normalised (Unicode NFC, so that an "é" of one sign or of two is the same) and has no
spaces at its ends. ``unknown`` is reserved, however it is cased, for what a model is not to know.
"""

from __future__ import annotations

import unicodedata

UNKNOWN = "unknown"


def clean_label(label: str) -> str:
    """The label that is meant by a folder's name or a cell."""
    label = unicodedata.normalize("NFC", label).strip()
    return UNKNOWN if label.casefold() == UNKNOWN else label


def alike(label: str) -> str:
    """Equal for labels that differ in case or spaces alone: nobody means two classes by them."""
    return unicodedata.normalize("NFC", "".join(label.split()).casefold())
