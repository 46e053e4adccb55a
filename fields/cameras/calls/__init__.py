"""What a call of predict predicts: the boxes of a detector."""
