"""What may be replaced, JSON read back with every value checked, names fit to be shared,
a folder that one process works in."""

from learners.files.checked import jsonable, ranged, read_as
from learners.files.lock import LOCK, acquire_lock, check_replaceable, disk_error, locked
from learners.files.names import (
    PathShortener,
    data_name,
    last_part,
    shared_command,
    shared_provenance,
)
