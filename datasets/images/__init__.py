"""Opens picture files safely and preprocesses them for a backbone."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from datasets.images.exif import GAP_MINUTES, CaptureTime, capture_sessions, capture_time
    from datasets.images.opening import Preprocessing, open_picture, pixels
    from datasets.images.standalone import model_input

__getattr__ = lazy_names(__name__)
