"""Rendering 400 five-second clips at 44.1 kHz into 224 px PNGs, against the essay's recipe.

    python benchmarks/bench_render.py --clips 400 --turns 4

Peer: `librosa.feature.melspectrogram`, `power_to_db`, `librosa.display.specshow` and
`savefig(dpi=400)` of a new figure for each clip, of matplotlib's default size (about 2000 px, to be
scaled down later) and of 0.72 inch (223 px), as is often done to have what a network takes. Its
imports and first call are not counted.
Bare cost: decoding with soundfile, windowing and Fourier transforms with scipy of the same frames,
and a finished picture saved with Pillow at its fastest level as RGB; and once more with our own
encoder settings. No cache, no hash, no mel bands, no scaling.
All have one BLAS thread, so that one process is one core; with two, and neighbours, the peer takes
up to four times as long.

A busy machine disturbs a second of one and not the next. One process, the peer and the bare cost
therefore take turns on a few clips at a time, and the medians are of the turns' ratios. Two
processes draw all clips at once, between two turns of the peer; what two processes of nothing but
transforms gain over one at that moment is printed beside it, for no more can be gained here.
Targets: 20x with one process, 38x with two, 1.35x bare at most, warm 20x cold.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

os.environ.update(OPENBLAS_NUM_THREADS="1", OMP_NUM_THREADS="1")  # before numpy is loaded

import numpy as np
from PIL.Image import Image

from benchmarks._record import parse, record, spread
from datasets.drawings.pictures import PictureCache
from datasets.drawings.store import SETTLED
from datasets.sound.recipe import AudioRecipe

RATE, SECONDS = 44_100, 5
SMALL = (0.72, 0.72)  # inches


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


def bare(path: Path, out: Path, recipe: AudioRecipe, picture: Image, **encoder: int) -> None:
    """The least one clip can cost: decode, transform, encode."""
    import soundfile
    from scipy.fft import rfft

    signal, _ = soundfile.read(path, dtype="float32")
    padded = np.pad(signal, recipe.n_fft // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, recipe.n_fft)[:: recipe.hop]
    hann = np.hanning(recipe.n_fft + 1)[:-1].astype(np.float32)
    rfft(frames * hann)
    picture.save(out, "PNG", compress_level=1, **encoder)


def transforms(_: object = None) -> None:
    """Half a second of work that needs nothing but a core."""
    from scipy.fft import rfft

    block = np.random.default_rng(0).standard_normal((64, 2048)).astype(np.float32)
    for _ in range(1500):
        rfft(block)


def scaling() -> float:
    """How much more two processes do than one, at this moment: 2 on two free cores."""
    with multiprocessing.Pool(2) as pool:
        one = timed(lambda: pool.map(transforms, [0]))
        two = timed(lambda: pool.map(transforms, [0, 1], chunksize=1))
    return 2 * one / two


def timed(action: Callable[[], object]) -> float:
    """Seconds by the wall."""
    begun = time.perf_counter()
    action()
    return time.perf_counter() - begun


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--clips", type=int, default=400)
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=3, help="turns of two processes")
    options = parse(parser, clips=4, turns=1, pairs=1)
    import matplotlib

    matplotlib.use("Agg")
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        paths = make_clips(folder, options.clips)
        recipe = AudioRecipe.infer(paths)
        picture = recipe.image(recipe.read(paths[0]))

        def peer(clips: list[Path], inches: tuple[float, float] | None = None) -> float:
            out = folder / "peer.png"
            return timed(lambda: [essay(path, out, inches) for path in clips]) / len(clips)

        def plain(clips: list[Path], image: Image, **encoder: int) -> float:
            out = folder / "bare.png"
            work = partial(bare, out=out, recipe=recipe, picture=image, **encoder)
            return timed(lambda: [work(path) for path in clips]) / len(clips)

        peer(paths[:2])
        alone = PictureCache(folder / "one")
        each = -(-len(paths) // options.turns)
        turns = []
        for first in range(0, len(paths), each):
            clips = paths[first : first + each]
            turns.append(
                (
                    peer(clips[:1]),
                    peer(clips[:2], SMALL),
                    timed(lambda c=clips: alone.render_all(c, recipe, workers=1)) / len(clips),
                    plain(clips, picture.convert("RGB")),
                    plain(clips, picture, compress_type=2),
                )
            )
        pairs = []
        for turn in range(options.pairs):
            store = PictureCache(folder / f"two-{turn}")
            gain = scaling()
            before = peer(paths[:2]), peer(paths[:4], SMALL)
            two = timed(lambda s=store: s.render_all(paths, recipe, workers=2)) / len(paths)
            after = peer(paths[:2]), peer(paths[:4], SMALL)
            pairs.append((before[0] + after[0], before[1] + after[1], 2 * two, gain))
        warm = [
            timed(lambda: PictureCache(folder / "one").render_all(paths, recipe)) / len(paths)
            for _ in range(5)
        ]
    large, small, ones, bares, least = np.array(turns).T * 1000
    larges, smalls, twos, gains = np.array(pairs).T * 500
    rows = {
        "peer, default size": large,
        "peer, 0.72 inch": small,
        "bare": bares,
        "bare, our encoder": least,
        "cold, 1 process": ones,
        "cold, 2 processes": twos,
        "warm": np.array(warm) * 1000,
    }
    print(f"{len(paths)} clips, {os.cpu_count()} cores; ms a clip, median (least to most)")
    for name, values in rows.items():
        print(f"  {name:18} {np.median(values):8.3f}  ({values.min():.3f} to {values.max():.3f})")
    for size, alone_ratio, pair_ratio, bound in (
        ("default size", large / ones, larges / twos, large / bares),
        ("0.72 inch", small / ones, smalls / twos, small / bares),
    ):
        print(f"against the peer, {size}:")
        print(f"  one process    {np.median(alone_ratio):6.1f}x (target 20)")
        print(f"  two processes  {np.median(pair_ratio):6.1f}x (target 38)")
        print(f"  bare cost      {np.median(bound):6.1f}x, what one process can hardly pass")
    print(f"two processes of transforms alone do {np.median(gains) / 500:.2f}x the work of one")
    print(f"one process    {np.median(ones / bares):6.2f}x the bare cost (target 1.35 at most)")
    print(f"one process    {np.median(ones / least):6.2f}x the bare cost with our encoder")
    record(
        "rendering",
        {
            "ratio of one process to the peer, default size, clock": spread(ones, large),
            "ratio of one process to the peer, 0.72 inch, clock": spread(ones, small),
            "ratio of one process to bare, clock": spread(ones, bares),
        },
    )
    print(f"warm           {np.median(ones) / np.median(rows['warm']):6.0f}x the cold (target 20)")


if __name__ == "__main__":
    main()
