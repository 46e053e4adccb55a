"""Trains networks: from items and a network to the weights of the best epoch."""
