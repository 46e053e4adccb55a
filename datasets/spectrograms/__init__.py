"""Renders signals to spectrograms, in parallel or on a cluster, and caches them by content."""
