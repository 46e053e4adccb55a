"""What may be replaced, JSON read back with every value checked, names fit to be shared."""

from learners.files.checked import Checked, jsonable
from learners.files.names import Names, last_part, shared_command, shared_provenance
from learners.files.replace import check_replaceable, disk_error

__all__ = [
    "Checked",
    "Names",
    "check_replaceable",
    "disk_error",
    "jsonable",
    "last_part",
    "shared_command",
    "shared_provenance",
]
