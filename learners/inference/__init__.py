"""Predicts files with a model folder, by torch or ONNX Runtime, on this machine or on others."""
