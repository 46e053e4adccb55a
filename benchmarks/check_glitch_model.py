"""What models trained on `demo:glitches` say of a real merger. Prints a line an answer.

Run, with the two files of GW150914 that the open-science centre publishes (32 s, 4096 Hz):

    python benchmarks/check_glitch_model.py runs/glitches/model ../shared/data/strain/*.hdf5

Without files two simulated mergers take their place; without a model it is that of `make demo`.
A model passes if it calls the merger Chirp_sim or unknown in every detector, never a glitch. The
exit status is the number of models that fail.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._record import parse
from datasets.demos import glitches

DEMO = Path("runs/glitches/model")
RIGHT = ("Chirp_sim", "unknown")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("paths", nargs="*", help="model folders, and strain files")
    parser.add_argument("--at", type=float, default=1126259462.4, help="GPS time in seconds")
    arguments = parse(parser)
    models = [path for path in arguments.paths if Path(path).is_dir()]
    files = [path for path in arguments.paths if path not in models]
    if not models and not DEMO.exists():
        print(f"left out: it needs a model of glitches, and {DEMO} (`make demo`) is not there")
        return 0
    with tempfile.TemporaryDirectory() as passing:
        items = [(file, arguments.at) for file in files]
        if not files:
            simulated = glitches.write_demo(passing, per_class=2, classes=["Chirp_sim"])
            items = [(row["path"], row["gps"]) for row in simulated]
        return judge(models or [str(DEMO)], items)


def judge(models: list[str], items: list[tuple[str, float]]) -> int:
    """How many models call one of the files, at its GPS time, a glitch."""
    from datasets.drawings.pictures import Source
    from learners.prediction.predictor import Predictor

    failed = 0
    for model in models:
        answers = list(Predictor(model).predict([Source(path, at=at) for path, at in items]))
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
