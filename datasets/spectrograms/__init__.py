"""Files and a recipe -> drawn pictures in a content-addressed store, drawn in parallel or on a cluster."""

from typing import TYPE_CHECKING

from datasets.core.lazy import on_demand

if TYPE_CHECKING:
    from datasets.spectrograms.decoded import DecodedPictures, Prepared, keep
    from datasets.spectrograms.pictures import (
        PictureCache,
        Source,
        cache_root,
        no_signal,
        source_of,
    )
    from datasets.spectrograms.settings import (
        COLOUR_MAPS,
        AnyPath,
        Seconds,
        SpectrogramSettings,
        check_types,
        check_values,
        colour_table,
        commonest,
        spread,
    )
    from datasets.spectrograms.windows import ItemRow, cut, draw_rows, items

__getattr__ = on_demand(__name__)
