"""Opens picture files safely, preprocesses them for a backbone, and caches the decoded pixels."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from datasets.images.boxes import Box, box_in_picture
    from datasets.images.decoded import DecodedPictures, PictureOpener, decoded_store, keep_decoded
    from datasets.images.exif import (
        GAP_MINUTES,
        CaptureTime,
        capture_sessions,
        capture_time,
        read_exif,
        time_and_place,
    )
    from datasets.images.opening import Preprocessing, open_picture, pixels
    from datasets.images.standalone import model_input

__getattr__ = lazy_names(__name__)
