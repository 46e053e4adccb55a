"""Reads strain files safely and renders Q-scans."""

from datasets.strain.files import Strain, read_strain
from datasets.strain.formats import (
    Wanted,
    as_bad_file,
    check_chunks,
    find_dataset,
    numeric_dataset,
)
from datasets.strain.frames import (
    STRIDE,
    Frame,
    Frames,
    Stream,
    file_at,
    lists_to_scan,
    open_strain,
    paths_at,
    read_frames,
    read_list,
    scan_of,
    series_of,
    source_path,
    with_channel,
)
from datasets.strain.qscan import spectral_density
from datasets.strain.settings import QScanSettings
