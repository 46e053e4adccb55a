"""Compares rendered spectrograms with librosa's mel spectrograms and gwpy's Q-transforms of the same files.

    python benchmarks/check_real_data.py --out docs/spectrograms.png
    python benchmarks/check_real_data.py ../shared/data/strain/*.hdf5 --at 1126259462.4

Without files both are simulated: two seconds of a siren, and a chirp in the noise of a detector. Prints
the largest differences: of sound in dB; of strain whitened, of tile energies (relative) and of the
picture's normalised energy, also as a part of the range that is drawn (0 to 25.5).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._shared import parse, software_and_hardware
from datasets.audio.settings import MelSettings
from datasets.kinds.base import kind_of
from datasets.sources import glitches, sounds
from datasets.strain.files import Strain, read_strain
from datasets.strain.qscan import qtransform, whiten

RATE, BAND, VIEWS = 22050, (10.0, 1200.0), (0.5, 1.0, 2.0, 4.0)
Pair = tuple[np.ndarray, np.ndarray]


def mels(name: str, signal: np.ndarray, rate: int) -> Pair:
    """dB [mels, frames], below the peak: ours and librosa's."""
    import librosa

    spectrogram = MelSettings(rate=rate, window=len(signal) / rate)
    power = librosa.feature.melspectrogram(
        y=signal, sr=rate, n_fft=spectrogram.n_fft, hop_length=spectrogram.hop, n_mels=spectrogram.n_mels,
        fmin=spectrogram.fmin, fmax=spectrogram.fmax, pad_mode="constant",
    )  # fmt: skip
    drawn = spectrogram.mel_db(signal), librosa.power_to_db(power, top_db=None)
    ours, theirs = (np.maximum(levels - levels.max(), -80) for levels in drawn)
    far = float(np.abs(ours - theirs).max())
    print(f"{name}: librosa: at most {far:.2g} apart, of {np.ptp(theirs):.0f} (dB)")
    return ours, theirs


def scans(name: str, strain: Strain) -> Pair:
    """Normalised energy [frequencies, times] of 1 s around the trigger: ours and gwpy's."""
    from gwpy.segments import Segment
    from gwpy.signal.qtransform import q_scan
    from gwpy.timeseries import TimeSeries

    rate, centre = int(strain.rate), strain.trigger - strain.start
    search = (centre - 0.25, centre + 0.25)
    series = TimeSeries(strain.values, sample_rate=rate, t0=0)
    white = series.whiten(asd=series.asd(2, 1, window="hann", method="median"))
    ours = whiten(strain.values, rate)
    gram = qtransform(ours, rate, frange=BAND, search=search)
    peer, _ = q_scan(white, qrange=(4, 64), frange=BAND, search=Segment(*search))
    tiles = max(
        float(np.abs(mine / other.value - 1).max())
        for mine, other in zip(gram.energies, peer.energies, strict=True)
    )
    print(f"{name}: whitened {np.abs(ours - white.value).max():.1e}, tile energies {tiles:.1e}")
    pairs = []
    for view in VIEWS:
        span = (centre - view / 2, centre + view / 2)
        (drawn,) = gram.images([span], width=1000, height=500)
        theirs = series.q_transform(
            qrange=(4, 64), frange=BAND, gps=centre, outseg=span, logf=True
        ).value.T[:, :1000]
        far = float(np.abs(drawn - theirs).max())
        clipped = np.abs(np.clip(drawn, 0, 25.5) - np.clip(theirs, 0, 25.5)).max() / 25.5
        print(
            f"{name}, {view:g} s: gwpy: at most {far:.2g} apart, of {np.ptp(theirs):.0f} (energy); "
            f"{clipped:.1e} of the range drawn"
        )
        pairs.append((drawn, theirs))
    return pairs[1]


def draw(drawn: list[tuple[Pair, str]], out: Path) -> None:
    from matplotlib.figure import Figure
    from PIL import Image

    figure = Figure(figsize=(7, 2.2 * len(drawn)), dpi=80, layout="constrained")
    grid = figure.subplots(len(drawn), 2, sharex="row", sharey="row", squeeze=False)
    for row, (pair, peer) in zip(grid, drawn, strict=True):
        limits = (-80, 0) if peer == "librosa" else (0, 25.5)
        for axes, picture, name in zip(row, pair, ("here", peer), strict=True):
            axes.imshow(picture, origin="lower", aspect="auto", vmin=limits[0], vmax=limits[1])
            axes.set(title=name, xticks=[], yticks=[])
        row[0].set_ylabel("mel bands" if peer == "librosa" else "frequency, log")
    figure.savefig(out)
    small = Image.open(out).convert("RGB").quantize(48)
    small.save(out, optimize=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("files", nargs="*", help="sound or strain; simulated if not given")
    parser.add_argument("--at", type=float, help="GPS time of the trigger, in seconds")
    parser.add_argument("--out", type=Path, help="a picture, as spectrograms.png")
    asked = parse(parser)
    drawn: list[tuple[Pair, str]] = []
    for file in asked.files:
        if kind_of(file) == "strain":
            drawn.append((scans(Path(file).name, read_strain(file, at=asked.at)), "gwpy"))
        else:
            import soundfile

            signal, rate = soundfile.read(file, dtype="float32", always_2d=True)
            drawn.append((mels(Path(file).name, signal.mean(axis=1), rate), "librosa"))
    if not asked.files:
        siren, chirp = (
            sounds.simulate("Siren_sim", rng=3),
            glitches.simulate("Chirp_sim", rng=4),
        )
        drawn = [(mels("siren", siren, RATE), "librosa"), (scans("chirp", chirp), "gwpy")]
    if asked.out:
        draw(drawn, asked.out)
    print(software_and_hardware("librosa", "gwpy"))


if __name__ == "__main__":
    main()
