"""What the recipes draw, beside librosa's mel spectrogram and gwpy's Q-transform of the same signals.

    python benchmarks/check_pictures.py --out docs/pictures.png

Both are simulated: two seconds of a siren, and a chirp in the noise of a detector. Prints the largest
differences, of dB and of normalised energy.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._record import parse
from datasets.demos import glitches, sounds
from datasets.sound import AudioRecipe
from datasets.strain.qscan import qtransform
from datasets.strain.whitening import whiten

RATE, BAND, VIEW = 22050, (10.0, 1200.0), 1.0


def mels() -> tuple[np.ndarray, np.ndarray]:
    """dB [mels, frames], below the peak: ours and librosa's."""
    import librosa

    signal, recipe = sounds.simulate("Siren_sim", rng=3), AudioRecipe(rate=RATE, window=2.0)
    power = librosa.feature.melspectrogram(
        y=signal, sr=RATE, n_fft=recipe.n_fft, hop_length=recipe.hop, n_mels=recipe.n_mels,
        fmin=recipe.fmin, fmax=recipe.fmax, pad_mode="constant",
    )  # fmt: skip
    drawn = recipe.mel_db(signal), librosa.power_to_db(power, top_db=None)
    ours, theirs = (np.maximum(levels - levels.max(), -80) for levels in drawn)
    return ours, theirs


def scans() -> tuple[np.ndarray, np.ndarray]:
    """Normalised energy [frequencies, times] around the loudest moment: ours and gwpy's."""
    from gwpy.timeseries import TimeSeries

    strain = glitches.simulate("Chirp_sim", rng=4)
    rate, centre = int(strain.rate), strain.trigger - strain.start
    span = (centre - VIEW / 2, centre + VIEW / 2)
    gram = qtransform(
        whiten(strain.values, rate), rate, frange=BAND, search=(centre - 0.25, centre + 0.25)
    )
    (ours,) = gram.images([span], width=1000, height=500)
    series = TimeSeries(strain.values, sample_rate=rate, t0=0)
    theirs = series.q_transform(qrange=(4, 64), frange=BAND, gps=centre, outseg=span, logf=True)
    return ours, theirs.value.T[:, :1000]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)  # fmt: skip
    parser.add_argument("--out", type=Path, help="a picture, as pictures.png")
    asked = parse(parser)
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(7, 4.4), dpi=80, layout="constrained")
    grid = figure.subplots(2, 2, sharex="row", sharey="row")
    for row, (pair, peer, unit) in enumerate(
        ((mels(), "librosa", "dB"), (scans(), "gwpy", "energy"))
    ):
        far = float(np.abs(pair[0] - pair[1]).max())
        print(f"{peer}: at most {far:.2g} apart, of {np.ptp(pair[1]):.0f} ({unit})")
        limits = (-80, 0) if row == 0 else (0, 25.5)
        for axes, drawn, name in zip(grid[row], pair, ("here", peer), strict=True):
            axes.imshow(drawn, origin="lower", aspect="auto", vmin=limits[0], vmax=limits[1])
            axes.set(title=name, xticks=[], yticks=[])
        grid[row][0].set_ylabel(("mel bands", "frequency, log")[row])
    if asked.out:
        figure.savefig(asked.out)
        small = Image.open(asked.out).convert("RGB").quantize(48)
        small.save(asked.out, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
