"""Rendering and prediction on the workers of a Dask cluster."""
