"""Shared basics (errors, files, tables, processes, caches); each module is imported by its own name."""
