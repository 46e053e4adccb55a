"""The ratios in benchmarks/results.json as a table, and as a picture beside it.

python -m benchmarks.table ratios.png
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks._record import read, results_path


class Ratio(NamedTuple):
    """Of two sides that took turns: the first's time over the second's, round by round."""

    name: str
    median: float
    least: float
    greatest: float
    machine: str
    load: float


def ratios(found: dict[str, dict[str, Any]]) -> list[Ratio]:
    """Every figure whose key begins with "ratio", by the benchmarks' names."""
    rows = []
    for name, entry in sorted(found.items()):
        for key, value in entry["figures"].items():
            if key.startswith("ratio"):
                numbers = value if isinstance(value, list) else [value] * 3
                what = key.removeprefix("ratio").removeprefix(" of").strip()
                rows.append(Ratio(f"{name}: {what}", *numbers, entry["machine"], entry["load"]))
    return rows


HEAD = "| benchmark | ratio | least to greatest | load |\n| --- | ---: | ---: | ---: |\n"


def table(rows: list[Ratio]) -> str:
    """Markdown, one for each machine."""
    tables = []
    for machine in dict.fromkeys(row.machine for row in rows):
        lines = [
            f"| {row.name} | {row.median:.2f} | {row.least:.2f} to {row.greatest:.2f} | {row.load:.1f} |"
            for row in rows
            if row.machine == machine
        ]
        tables.append(f"{machine}:\n\n{HEAD}" + "\n".join(lines))
    return "\n\n".join(tables)


def main() -> int:
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else results_path().with_name("ratios.png")
    rows = ratios(read())
    if not rows:
        print(f"no ratios in {results_path()}: run `make bench` first", file=sys.stderr)
        return 2
    print(table(rows))
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(11, 1 + 0.25 * len(rows)), layout="constrained")
    beside = axes.get_yaxis_transform()  # x in parts of the width
    for place, row in enumerate(reversed(rows)):
        axes.plot([row.least, row.greatest], [place, place], color="0.6", linewidth=3)
        axes.plot(row.median, place, "o", color="tab:blue")
        axes.text(1.01, place, f"{row.median:.3g}", transform=beside, va="center")
    axes.set_yticks(range(len(rows)), [row.name for row in reversed(rows)])
    axes.set_ylim(-0.7, len(rows) - 0.3)
    axes.grid(axis="y", color="0.92")
    axes.set_axisbelow(True)
    axes.axvline(1, color="0.3", linestyle=":")
    axes.set_xscale("log")
    axes.set_xlabel("ratio of the first to the second: median, from the least to the greatest")
    figure.savefig(out, dpi=120)
    print(f"\n{out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
