"""The machine that a process runs on: devices, threads, precision, and what speeds it up."""
