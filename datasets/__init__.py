"""Reads pictures, sound and strain into item tables and DataLoaders; imports nothing of ``learners`` or ``app``.

Shares its name with a Hugging Face package; inside this project ours wins, see docs/architecture.md.
"""
