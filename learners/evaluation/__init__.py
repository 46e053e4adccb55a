"""Figures for predictions on labelled items: accuracy, calibration (ECE, reliability), risk and coverage,
AUROC of unknown classes, suspected labels and duplicates.
"""
