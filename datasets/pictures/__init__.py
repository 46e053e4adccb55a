"""A picture file -> RGB pixels, opened safely and brought to what a backbone was trained with."""

from typing import TYPE_CHECKING

from datasets.fronts import on_demand

if TYPE_CHECKING:
    from datasets.pictures.images import Preprocessing, open_picture, pixels
    from datasets.pictures.standalone import model_input
    from datasets.pictures.taken import GAP_MINUTES, visits

__getattr__ = on_demand(__name__)
