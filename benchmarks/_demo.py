"""A model and pictures for benchmarks that are given none: `demo:digits`, fine-tuned once."""

from __future__ import annotations

import sys
from pathlib import Path

TRAINING = "--bs 32 --no-flip --min-scale 0.7 --threshold 0.8"


def demo_run(small: bool) -> Path:
    """The run folder, in the cache folder; ``small`` is one that learnt next to nothing."""
    from datasets.drawings.pictures import cache_root
    from learners.finetune import main

    run = cache_root() / "benchmarks" / ("digits-small" if small else "digits")
    if not (run / "model" / "config.json").is_file():
        data, size = ("demo:digits", "64") if not small else (_few(run.with_suffix(".csv")), "32")
        print(f"no model was named: fine-tuning one on {data} into {run}", file=sys.stderr)
        words = ["--data", data, "--size", size, "--epochs", str(int(not small))]
        words += ["--backbone", "test_resnet", "--no-pretrained"] * small
        if main([*words, *TRAINING.split(), "--out", str(run), "--overwrite"]):
            raise SystemExit("the demo could not be trained, see above")
    return run


def demo_files(count: int, label: str = "known") -> list[str]:
    """Some of the digits that it was shown, or that it was not ("unknown")."""
    from datasets.demos.sets import write_demo

    frame, _ = write_demo("digits")
    strange = frame["label"].eq("unknown")
    return [
        str(path) for path in frame["path"][strange if label == "unknown" else ~strange][:count]
    ]


def _few(table: Path) -> str:
    from datasets.demos.sets import write_demo

    table.parent.mkdir(parents=True, exist_ok=True)
    write_demo("digits")[0].head(160).to_csv(table, index=False)
    return str(table)
