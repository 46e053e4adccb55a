"""A strain file -> samples, opened safely; a recipe for its Q-scan -> a picture."""

from datasets.strain.files import Strain, read_strain
from datasets.strain.formats import open_strain
from datasets.strain.hdf5 import broken, check_chunks, linked, numbers
from datasets.strain.recipe import StrainRecipe
from datasets.strain.whitening import spectral_density

__all__ = [
    "Strain", "StrainRecipe", "broken", "check_chunks", "linked", "numbers", "open_strain",
    "read_strain", "spectral_density",
]  # fmt: skip
