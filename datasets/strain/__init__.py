"""Reads strain files safely and renders Q-scans."""
