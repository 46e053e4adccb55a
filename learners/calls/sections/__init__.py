"""Flags of ``learners.predict`` that only some calls have, one group a file."""
