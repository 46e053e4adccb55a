"""Renders signals to spectrograms, in parallel or on a cluster, and caches them by content."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from datasets.spectrograms.pictures import (
        PictureCache,
        Source,
        cache_root,
        no_signal,
        offset_of,
        source_of,
    )
    from datasets.spectrograms.settings import (
        COLOUR_MAPS,
        AnyPath,
        Part,
        Seconds,
        SpectrogramSettings,
        check_types,
        check_values,
        colour_table,
        most_common_rate,
        sample_evenly,
    )
    from datasets.spectrograms.windows import ItemRow, cut_windows, item_rows, render_rows

__getattr__ = lazy_names(__name__)
