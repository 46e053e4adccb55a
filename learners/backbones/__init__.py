"""Builds networks in plain torch from a backbone's name: body, head and preprocessing."""
