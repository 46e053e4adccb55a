"""What ``learners.predict`` predicts, one file each."""
