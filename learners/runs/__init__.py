"""Runs: train, calibrate, predict, report; cross-validation; resuming; evaluation on other data."""
