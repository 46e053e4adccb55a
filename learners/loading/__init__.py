"""Loads a model to predict with: for the commands, the page, and programs."""
