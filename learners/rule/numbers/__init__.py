"""Arrays of what a network gives, and ranks among calibration items: what rules and scores compute with."""
