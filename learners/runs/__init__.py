"""Runs: train, calibrate, predict, report; cross-validation; resuming."""
