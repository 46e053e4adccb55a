"""Cameras: photos and recordings that lie where nobody watched, when and where they were made, and what a detector found in them."""
