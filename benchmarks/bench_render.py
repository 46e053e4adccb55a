"""Time to render spectrograms compared with librosa, matplotlib and gwpy, in alternating rounds.

``sound``: `--clips` clips of five seconds at 44.1 kHz as PNGs of 224 px. Peer: the essay's code,
`librosa.feature.melspectrogram`, `power_to_db`, `librosa.display.specshow` and `savefig(dpi=400)` of a
new figure for each clip, of matplotlib's default size (about 2000 px, to be scaled down later) and of
0.72 inch (223 px), as is often done to have what a network takes. Ours draws into an empty cache.

``strain``: four views, 0.5, 1, 2 and 4 s, on the same grid, from strain in memory: whitening, transform,
interpolation. "q_transform" calls gwpy's method of that name once a view, as its users do; "by hand"
whitens and transforms once with gwpy's parts and interpolates four times.

One process with one BLAS thread each. Times are medians; ratios are ours over the peer's.

    python benchmarks/bench_render.py --clips 400 --rounds 4
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # before numpy is loaded

import numpy as np

from benchmarks._shared import parse, software_and_hardware, spread
from datasets.audio.settings import MelSettings
from datasets.core.file_state import SETTLED
from datasets.spectrograms.pictures import PictureCache
from datasets.strain.qscan import qtransform, whiten

RATE, SECONDS = 44_100, 5
SMALL = (0.72, 0.72)  # inches
STRAIN_RATE, VIEWS, BAND = 4096, (0.5, 1.0, 2.0, 4.0), (10.0, 1200.0)


def make_clips(folder: Path, count: int) -> list[Path]:
    """Sweeps in noise, 16-bit WAV, settled: hashes of files just written are not kept."""
    import soundfile

    rng = np.random.default_rng(0)
    t = np.arange(RATE * SECONDS) / RATE
    paths = []
    for number in range(count):
        low, rise, decay = rng.uniform((200, 0, 0), (3000, 500, 1))
        clip = 0.3 * np.sin(2 * np.pi * (low + rise * t) * t) * np.exp(-decay * t)
        clip += rng.uniform(0.001, 0.05) * rng.standard_normal(len(t))
        path = folder / f"{number:04}.wav"
        soundfile.write(path, clip, RATE)
        paths.append(path)
    time.sleep(SETTLED)
    return paths


def essay(path: Path, out: Path, inches: tuple[float, float] | None) -> None:
    """One clip by the peer's recipe; None for matplotlib's default size."""
    import librosa
    import librosa.display
    import matplotlib.pyplot as plt

    signal, rate = librosa.load(path, sr=None)
    mel = librosa.feature.melspectrogram(y=signal, sr=rate)
    figure = plt.figure(figsize=inches)
    axes = figure.add_subplot(111)
    axes.xaxis.set_visible(False)
    axes.yaxis.set_visible(False)
    axes.set_frame_on(False)
    librosa.display.specshow(librosa.power_to_db(mel, ref=np.max), ax=axes)
    figure.savefig(out, dpi=400, bbox_inches="tight", pad_inches=0)
    plt.close("all")


def timed(action: Callable[[], object]) -> float:
    """Milliseconds by the clock."""
    begun = time.perf_counter()
    action()
    return 1e3 * (time.perf_counter() - begun)


def sound(count: int, rounds: int) -> None:
    """A busy machine disturbs a second of one and not the next: each round is of a part of the clips."""
    import matplotlib

    matplotlib.use("Agg")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        paths, out = make_clips(folder, count), folder / "peer.png"
        spectrogram = MelSettings.infer(paths)
        store = PictureCache(folder / "cache")
        essay(paths[0], out, None)  # imports and first calls are not counted
        PictureCache(folder / "first").render_all(paths[:1], spectrogram, workers=1)
        each = -(-len(paths) // rounds)
        times: dict[str, list[float]] = {}

        def took(name: str, clips: list[Path], draw: Callable[[list[Path]], object]) -> None:
            times.setdefault(name, []).append(timed(lambda: draw(clips)) / len(clips))

        def peer(inches: tuple[float, float] | None) -> Callable[[list[Path]], object]:
            return lambda clips: [essay(clip, out, inches) for clip in clips]

        for first in range(0, len(paths), each):
            clips = paths[first : first + each]
            took("ours", clips, lambda clips: store.render_all(clips, spectrogram, workers=1))
            took("librosa, default size", clips[:1], peer(None))
            took("librosa, 0.72 inch", clips[:2], peer(SMALL))
    print(f"{count} clips of {SECONDS} s, one process: ms a clip, and the ratio of ours to it")
    for name, values in times.items():
        print(f"  {name:22} {statistics.median(values):8.2f}   {spread(times['ours'], values)}")


def spans(centre: float) -> list[tuple[float, float]]:
    return [(centre - v / 2, centre + v / 2) for v in VIEWS]


def ours(values: np.ndarray, width: int, height: int) -> None:
    centre = values.size / STRAIN_RATE / 2
    white = whiten(values, STRAIN_RATE)
    gram = qtransform(white, STRAIN_RATE, frange=BAND, search=(centre - 0.25, centre + 0.25))
    gram.images(spans(centre), width=width, height=height)


def gwpy_q_transform(values: np.ndarray, width: int, height: int) -> None:
    from gwpy.timeseries import TimeSeries

    series = TimeSeries(values, sample_rate=STRAIN_RATE, t0=0)
    centre = values.size / STRAIN_RATE / 2
    for start, stop in spans(centre):
        series.q_transform(
            qrange=(4, 64), frange=BAND, gps=centre, outseg=(start, stop), logf=True,
            tres=(stop - start) / width, fres=height,
        )  # fmt: skip


def gwpy_by_hand(values: np.ndarray, width: int, height: int) -> None:
    from gwpy.segments import Segment
    from gwpy.signal.qtransform import q_scan
    from gwpy.timeseries import TimeSeries

    series = TimeSeries(values, sample_rate=STRAIN_RATE, t0=0)
    centre = values.size / STRAIN_RATE / 2
    white = series.whiten(asd=series.asd(2, 1, window="hann", method="median"))
    search = Segment(centre - 0.25, centre + 0.25)
    gram, _ = q_scan(white, qrange=(4, 64), frange=BAND, search=search)
    for start, stop in spans(centre):
        tres = (stop - start) / width
        gram.interpolate(outseg=Segment(start, stop), logf=True, tres=tres, fres=height)


def strain(seconds: int, width: int, height: int, rounds: int) -> None:
    values = 1e-22 * np.random.default_rng(0).standard_normal(seconds * STRAIN_RATE)
    ways = {"ours": ours, "gwpy, q_transform": gwpy_q_transform, "gwpy, by hand": gwpy_by_hand}
    times: dict[str, list[float]] = {name: [] for name in ways}
    for way in ways.values():
        way(values, width, height)  # imports, and what is kept between calls
    for _ in range(rounds):
        for name, way in ways.items():
            times[name].append(timed(lambda w=way: w(values, width, height)))  # type: ignore[misc]
    print(
        f"{seconds} s of strain, four views of {height} x {width}: ms, and the ratio of ours to it"
    )
    for name, each in times.items():
        print(f"  {name:22} {statistics.median(each):8.1f}   {spread(times['ours'], each)}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--what", nargs="+", choices=["sound", "strain"], default=["sound", "strain"]
    )
    parser.add_argument("--clips", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=4)
    options = parse(parser, clips=4, rounds=1)
    if "sound" in options.what:
        sound(options.clips, options.rounds)
    if "strain" in options.what:
        strain(8, 224, 224, options.rounds)
        if not options.small:
            strain(32, 224, 224, options.rounds)
            strain(32, 1000, 500, options.rounds)
    print(software_and_hardware("librosa", "matplotlib", "gwpy"))


if __name__ == "__main__":
    main()
