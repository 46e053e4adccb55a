"""Flags, their settings and the terminal, as all commands have them: each file is imported by its own name."""
