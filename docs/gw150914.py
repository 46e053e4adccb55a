"""Draws docs/gw150914.png: the Q-scans of GW150914 in two detectors, and what a model of simulated signals predicts.

    python docs/gw150914.py runs/glitches/model H-H1_*.hdf5 L-L1_*.hdf5 --at 1126259462.4

The files are those of `secondhand catalog gwosc:GW150914`; the model is that of ``make demo``.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))
NAMES = {"H": "Hanford (H1)", "L": "Livingston (L1)"}
#: Seconds before and after the event, and the ticks of the frequency axis in hertz.
SHOWN = (-0.3, 0.15)
TICKS = (16, 32, 64, 128, 256, 512)


def main() -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt
    import numpy as np

    from datasets.strain.files import read_strain
    from datasets.strain.qscan import qtransform, whiten
    from learners.loading.predictor import load_predictor

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="model folder")
    parser.add_argument("files", nargs="+", type=Path, help="strain files of the event")
    parser.add_argument("--at", type=float, required=True, help="GPS time of the event in seconds")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "gw150914.png")
    settings = parser.parse_args()
    predictions = list(load_predictor(settings.model).predict(settings.files, at=settings.at))
    figure, row = plt.subplots(
        1, len(settings.files), figsize=(9, 3.6), layout="constrained", sharey=True
    )
    for axes, path, prediction in zip(row, settings.files, predictions, strict=True):
        strain = read_strain(path)
        event = settings.at - strain.start
        gram = qtransform(
            whiten(strain.values, strain.rate), strain.rate, frange=(12, 700),
            search=(event - 0.25, event + 0.25),
        )  # fmt: skip
        window = (event + SHOWN[0], event + SHOWN[1])
        (picture,) = gram.images([window], width=500, height=250)
        mesh = axes.pcolormesh(
            np.linspace(*SHOWN, 500), np.geomspace(12, 700, 250), picture,
            vmin=0, vmax=25.5, cmap="viridis", rasterized=True,
        )  # fmt: skip
        axes.set_yscale("log", base=2)
        axes.set_yticks(TICKS, [str(tick) for tick in TICKS])
        sure = f"{prediction.probability:.0%}" if prediction.probability < 0.999 else "over 99.9 %"
        axes.set_title(f"{NAMES[path.name[0]]}: {prediction.label}, {sure} sure")
        axes.set_xlabel(f"time from GPS {settings.at} (s)")
    row[0].set_ylabel("frequency (Hz)")
    figure.colorbar(mesh, ax=row, label="normalised energy", shrink=0.9)
    figure.suptitle("GW150914, a real event, recognised by a model that saw only simulations")
    figure.savefig(settings.out, dpi=120)


if __name__ == "__main__":
    main()
