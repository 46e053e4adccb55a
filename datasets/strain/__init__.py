"""Reads strain files safely and renders Q-scans."""

from datasets.strain.files import Strain, read_strain
from datasets.strain.formats import (
    as_bad_file,
    check_chunks,
    find_dataset,
    numeric_dataset,
    open_strain,
)
from datasets.strain.frames import Frames, read_cache, read_frames, write_cache
from datasets.strain.qscan import spectral_density
from datasets.strain.settings import QScanSettings
