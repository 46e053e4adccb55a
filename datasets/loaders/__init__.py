"""Builds fastai DataLoaders from the item table, with the augmentations of training."""
