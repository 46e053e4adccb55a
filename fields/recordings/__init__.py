"""Recordings: their windows and events, how many events are found, and the formats of sound editors, in and out."""
