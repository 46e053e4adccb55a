"""Embeddings of unlabelled files, search by example, suggestions of what to label next, new classes, and audits."""
