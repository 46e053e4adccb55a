"""Accept a prediction or answer "unknown": calibration, thresholds with a guarantee (selective prediction), and
out-of-distribution scores for open-set recognition.

Only the functions that fit import scipy, so that predictions do without it.
"""
