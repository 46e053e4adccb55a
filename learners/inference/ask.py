"""Answers for pictures, a row for each, as CSV: ``python ask.py FILE...``. Needs numpy, pillow and onnxruntime
alone.

`model_input` cuts a picture as in training; the model's file has the rest of the arithmetic inside. An
answer that is not sure enough is "unknown".
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import sys
from pathlib import Path

os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # read as it is imported
import onnxruntime
from picture import model_input

#: What a spreadsheet would compute gets an apostrophe before it, as in all CSV files of Secondhand.
FORMULA = re.compile("'*[=+\\-@\t\r\n]")


def main(files: list[str]) -> int:
    """Returns 0, or 3 where some files were bad."""
    model = Path(__file__).with_name("model.onnx")
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    told = session.get_modelmeta().custom_metadata_map
    classes = json.loads(told["secondhand.classes"])
    preprocessing = json.loads(told["secondhand.preprocessing"])
    # A threshold on another score than the probability needs what is not in the file.
    on_probability = told["secondhand.threshold_on"] == "probability"
    threshold = told.get("secondhand.thresholds", told["secondhand.threshold"])
    thresholds = json.loads(threshold) if on_probability else 0.0
    if not isinstance(thresholds, list):
        thresholds = [thresholds] * len(classes)
    rows, bad = csv.writer(sys.stdout, lineterminator="\n"), 0
    rows.writerow(["path", "label", "best", "probability"])
    for file in files:
        try:
            pixels = model_input(file, preprocessing)
        except Exception as error:  # of any kind: a decoder's are its own
            print(f"{file}: bad file: {error}", file=sys.stderr)
            bad += 1
            continue
        probabilities = session.run(["probabilities"], {"pixels": pixels})[0][0]
        best = int(probabilities.argmax())
        # What is left of 1 is the background's, of a model that has learned one.
        least = 2.0 if thresholds[best] is None else thresholds[best]  # None: it is not answered
        sure = probabilities[best] >= max(least, 1 - probabilities.sum() - 1e-6)
        label = classes[best] if sure else "unknown"
        names = [f"'{n}" if FORMULA.match(n) else n for n in (file, label, classes[best])]
        rows.writerow([*names, f"{probabilities[best]:.6f}"])
    return 3 if bad else 0


if __name__ == "__main__":
    for stream in (sys.stdout, sys.stderr):  # a name may hold any letter, or be no UTF-8
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding="utf-8", errors="surrogateescape")
    sys.exit(main(sys.argv[1:]))
