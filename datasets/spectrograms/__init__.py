"""Renders signals to spectrograms, in parallel, and caches them by content."""
