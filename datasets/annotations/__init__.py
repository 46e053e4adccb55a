"""Reads annotations of other programs as items: Raven, Audacity, Camtrap DP, MegaDetector, and tables of triggers."""
