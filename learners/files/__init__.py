"""Files written whole or not at all, JSON read back with every value checked, names fit to be shared."""

from learners.files.checked import Checked, number_or_none
from learners.files.names import Names, last_part, shared_command, shared_provenance
from learners.files.replace import check_replaceable, disk_error, put, write_beside, written_beside

__all__ = [
    "Checked",
    "Names",
    "check_replaceable",
    "disk_error",
    "last_part",
    "number_or_none",
    "put",
    "shared_command",
    "shared_provenance",
    "write_beside",
    "written_beside",
]
