"""Predicts pictures and prints a CSV row for each: ``python predict.py FILE...``.

It needs numpy, pillow and onnxruntime. `model_input` resizes and crops a picture as in training;
model.onnx contains the rest. A prediction below its threshold is "unknown".
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # onnxruntime reads it when it is imported
import onnxruntime
from picture import model_input

#: Cells that a spreadsheet would compute get a leading apostrophe, as in all CSV files of Secondhand.
FORMULA = re.compile("'*[=+\\-@\t\r\n]")


def main(files: list[str]) -> int:
    """Print the predictions; return 0, or 3 if some files could not be read."""
    model = Path(__file__).with_name("model.onnx")
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    metadata = session.get_modelmeta().custom_metadata_map
    classes = json.loads(metadata["secondhand.classes"])
    preprocessing = json.loads(metadata["secondhand.preprocessing"])
    # A threshold on another score needs features of training files, which model.onnx lacks.
    on_probability = metadata["secondhand.threshold_on"] == "probability"
    threshold = json.loads(metadata["secondhand.threshold"]) if on_probability else 0.0
    rows, bad = csv.writer(sys.stdout, lineterminator="\n"), 0
    rows.writerow(["path", "label", "best", "probability"])
    for file in files:
        try:
            pixels = model_input(file, preprocessing)
        except Exception as error:  # decoders raise errors of many kinds
            print(f"{file}: bad file: {error}", file=sys.stderr)
            bad += 1
            continue
        probabilities = session.run(["probabilities"], {"pixels": pixels})[0][0]
        best = int(probabilities.argmax())
        # The probability of a background class is 1 minus the sum of the others.
        sure = probabilities[best] >= max(threshold, 1 - probabilities.sum() - 1e-6)
        label = classes[best] if sure else "unknown"
        names = [f"'{n}" if FORMULA.match(n) else n for n in (file, label, classes[best])]
        rows.writerow([*names, f"{probabilities[best]:.6f}"])
    return 3 if bad else 0


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):  # file names may hold any character, or not be UTF-8
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    sys.exit(main(sys.argv[1:]))
