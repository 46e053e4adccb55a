"""Locks and replacement of folders, checked JSON, and paths shortened for sharing."""

from learners.files.checked import jsonable, ranged, read_as
from learners.files.lock import LOCK, acquire_lock, check_replaceable, disk_error, locked
from learners.files.names import (
    PathShortener,
    data_name,
    last_part,
    shared_command,
    shared_provenance,
)
