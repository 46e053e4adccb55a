"""Writes predictions to files or the terminal, in the formats of the field; interrupted jobs resume."""
