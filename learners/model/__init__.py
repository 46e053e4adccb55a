"""Writes, verifies and reads model folders; reading one runs no code from it."""
