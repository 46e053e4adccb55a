"""A picture file -> RGB pixels, opened safely and brought to what a backbone was trained with."""

from typing import TYPE_CHECKING

from datasets.core.lazy import on_demand

if TYPE_CHECKING:
    from datasets.images.exif import GAP_MINUTES, CaptureTime, capture_time, sessions
    from datasets.images.opening import Preprocessing, open_picture, pixels
    from datasets.images.standalone import model_input

__getattr__ = on_demand(__name__)
