"""Gravitational-wave detectors: tables of triggers, and continuous strain across the borders of files."""
