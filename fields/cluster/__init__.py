"""Rendering, prediction and the features of a training on the workers of a Dask cluster."""
