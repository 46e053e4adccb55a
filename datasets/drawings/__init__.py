"""Files and a recipe -> drawn pictures in a content-addressed store, drawn in parallel or on a cluster."""

from typing import TYPE_CHECKING

from datasets.fronts import on_demand

if TYPE_CHECKING:
    from datasets.drawings.cluster import Cluster, connect
    from datasets.drawings.decoded import DecodedPictures, Prepared, keep
    from datasets.drawings.duplicates import (
        THUMBNAIL,
        alike_enough,
        correlation,
        find_clusters,
        thumbnails_of,
        tied,
    )
    from datasets.drawings.features import KeptFeatures
    from datasets.drawings.pictures import PictureCache, Source, cache_root, source_of
    from datasets.drawings.recipe import (
        COLOUR_MAPS,
        PCEN_VERSION,
        RENDERER_VERSION,
        AnyPath,
        Recipe,
        Seconds,
        check_types,
        check_values,
        colour_table,
    )
    from datasets.drawings.store import digest_of
    from datasets.drawings.windows import Item, cut, draw_rows, items

__getattr__ = on_demand(__name__)
