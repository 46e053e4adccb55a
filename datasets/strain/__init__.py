"""A strain file -> samples, opened safely; a recipe for its Q-scan -> a picture."""

from datasets.strain.files import Strain, read_strain
from datasets.strain.formats import open_strain
from datasets.strain.hdf5 import linked
from datasets.strain.recipe import StrainRecipe
from datasets.strain.whitening import spectral_density

__all__ = ["Strain", "StrainRecipe", "linked", "open_strain", "read_strain", "spectral_density"]
