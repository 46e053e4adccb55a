"""Accept a prediction or answer "unknown": the one place where that is decided.

    logits   -> calibrator -> probabilities -> the class, or the labels
    features -> distance to the training items, out-of-distribution score
    these    -> a rule -> a class, or the first reason to refuse, in the order of `reasons`

`rule.Rule` decides on mutually exclusive classes, `labels.LabelRule` on labels, `tree.TreeRule` on classes with groups
above them. Everything is fitted on the calibration split, which training does not use. Only the functions that fit
import scipy, so that predictions do without it.
"""
