"""Embeddings that another network has computed: read from files, and found by item."""
