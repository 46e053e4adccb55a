"""What the benchmarks found, in ``benchmarks/results.json``: one entry a benchmark and its settings."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("results.json")


def record(name: str, settings: dict[str, Any], **figures: Any) -> None:
    """Put the figures in the place of earlier ones of the same benchmark and settings.

    ``figures`` are numbers, or lists of what each round gave. The machine, its load and the versions
    stand beside them. The file is written beside and renamed.
    """
    import torch

    entry = {
        "benchmark": name,
        "settings": {key: str(value) for key, value in settings.items()},
        "figures": figures,
        "load": round(os.getloadavg()[0], 1),
        "cores": len(os.sched_getaffinity(0)),
        "machine": platform.machine(),
        "torch": torch.__version__,
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
    }
    same = ("benchmark", "settings")
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else []
    kept = [old for old in known if any(old[key] != entry[key] for key in same)]
    kept = sorted([*kept, entry], key=lambda one: (one["benchmark"], str(one["settings"])))
    beside = FILE.with_name(f".{FILE.name}.{os.getpid()}.part")
    beside.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    os.replace(beside, FILE)
