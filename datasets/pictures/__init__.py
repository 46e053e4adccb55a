"""A picture file -> RGB pixels, opened safely and brought to what a backbone was trained with."""

from datasets.pictures.images import Preprocessing, open_picture, pixels

__all__ = ["Preprocessing", "open_picture", "pixels"]
