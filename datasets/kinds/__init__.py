"""Kinds of files: what the other packages ask about pictures, sound, strain and embeddings, one file each."""
