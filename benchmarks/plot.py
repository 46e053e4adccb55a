"""The ratios in benchmarks/results.json as a picture beside it.

python -m benchmarks.plot ratios.png
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from benchmarks._record import read, results_path


def ratios(found: dict[str, dict[str, Any]]) -> list[tuple[str, list[float]]]:
    """(name, [median, least, greatest]) of every figure whose key begins with "ratio"."""
    rows = []
    for name, entry in sorted(found.items()):
        for key, value in entry["figures"].items():
            if key.startswith("ratio"):
                numbers = value if isinstance(value, list) else [value] * 3
                what = key.removeprefix("ratio").removeprefix(" of").strip()
                rows.append((f"{name}: {what}", numbers))
    return rows


def main() -> int:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else results_path().with_name("ratios.png")
    rows = ratios(read())
    if not rows:
        print(f"no ratios in {results_path()}: run `make bench` first", file=sys.stderr)
        return 2
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 1 + 0.25 * len(rows)), layout="constrained")
    beside = axes.get_yaxis_transform()  # x in parts of the width
    for place, (_, (median, least, greatest)) in enumerate(reversed(rows)):
        axes.plot([least, greatest], [place, place], color="0.6", linewidth=3)
        axes.plot(median, place, "o", color="tab:blue")
        axes.text(1.01, place, f"{median:.3g}", transform=beside, va="center")
    axes.set_yticks(range(len(rows)), [name for name, _ in reversed(rows)])
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.axvline(1, color="0.3", linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("ratio of the first to the second: median, from the least to the greatest")
    figure.savefig(out, dpi=120)
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
