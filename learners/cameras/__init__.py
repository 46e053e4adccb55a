"""Camera traps: the boxes of a detector, and the frames of one event."""
