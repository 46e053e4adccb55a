"""What models trained on `demo:glitches` say of a real merger. Prints a line an answer.

Run, with the two files of GW150914 that the open-science centre publishes (32 s, 4096 Hz):

    python benchmarks/check_glitch_model.py runs/glitches/model ../shared/data/strain/*.hdf5

A model passes if it calls the merger Chirp_sim or unknown in every detector, never a glitch. The
exit status is the number of models that fail.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

RIGHT = ("Chirp_sim", "unknown")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("paths", nargs="+", help="model folders, and strain files")
    parser.add_argument("--at", type=float, default=1126259462.4, help="GPS time in seconds")
    arguments = parser.parse_args()
    models = [path for path in arguments.paths if Path(path).is_dir()]
    files = [path for path in arguments.paths if path not in models]
    if not (models and files):
        parser.error("at least one model folder and one strain file are needed")
    from learners.predictor import Predictor

    failed = 0
    for model in models:
        answers = list(Predictor(model).predict(files, at=arguments.at))
        for answer in answers:
            top = "  ".join(f"{name} {p:.3f}" for name, p in answer.top)
            why = f" ({answer.reason})" if answer.reason else ""
            print(f"{model}  {Path(answer.path).name[:5]}  {answer.label}{why}")
            print(f"    {top}  distance p {answer.distance_p:.3f}")
        failed += any(answer.label not in RIGHT for answer in answers)
    print(f"{len(models) - failed} of {len(models)} models: Chirp_sim or unknown, never a glitch")
    return failed


if __name__ == "__main__":
    sys.exit(main())
