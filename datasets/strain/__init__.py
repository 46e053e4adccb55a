"""A strain file -> samples, opened safely; a recipe for its Q-scan -> a picture."""

from datasets.strain.files import Strain, open_strain, read_strain
from datasets.strain.recipe import StrainRecipe
from datasets.strain.whitening import spectral_density

__all__ = ["Strain", "StrainRecipe", "open_strain", "read_strain", "spectral_density"]
