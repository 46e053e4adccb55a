"""Rendering 400 five-second clips at 44.1 kHz into 224 px PNGs, against the essay's recipe.

    python benchmarks/bench_render.py [--clips 400] [--rounds 3]

Peer: `librosa.feature.melspectrogram`, `power_to_db`, `librosa.display.specshow` and
`savefig(dpi=400)` of a 0.72 inch figure (223 px), as matplotlib-based recipes do it; timed on a
few clips in each round and scaled to all. Its imports and first call are not counted, ours are.
Bare cost: decoding with soundfile, windowing and Fourier transforms with scipy, and encoding a
finished picture with Pillow, the same frames and encoder settings as ours; no cache, no files.
Rounds alternate, so that a busy machine disturbs all alike; each also measures what two processes
of nothing but transforms gain over one, which bounds what two can gain here. Medians are printed,
with the ratios and their targets: 20x with one process, 38x with two, 1.35x bare, warm 20x cold.
"""

from __future__ import annotations

import argparse
import io
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np

from datasets.cache import PictureCache
from datasets.spectrogram import AudioRecipe

RATE, SECONDS = 44_100, 5
PEER_CLIPS = 8


def make_clips(folder: Path, count: int) -> list[Path]:
    """Sweeps in noise, 16-bit WAV, last changed a minute ago."""
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
        os.utime(path, (time.time() - 60,) * 2)
        paths.append(path)
    return paths


def essay(path: Path, out: Path) -> None:
    """One clip by the peer's recipe."""
    import librosa
    import librosa.display
    import matplotlib.pyplot as plt

    signal, rate = librosa.load(path, sr=None)
    mel = librosa.feature.melspectrogram(y=signal, sr=rate)
    figure = plt.figure(figsize=[0.72, 0.72])
    axes = figure.add_subplot(111)
    axes.xaxis.set_visible(False)
    axes.yaxis.set_visible(False)
    axes.set_frame_on(False)
    librosa.display.specshow(librosa.power_to_db(mel, ref=np.max), ax=axes)
    figure.savefig(out, dpi=400, bbox_inches="tight", pad_inches=0)
    plt.close("all")


def bare(path: Path, recipe: AudioRecipe, picture: object) -> None:
    """The least one clip can cost: decode, transform, encode."""
    import soundfile
    from scipy.fft import rfft

    signal, _ = soundfile.read(path, dtype="float32")
    padded = np.pad(signal, recipe.n_fft // 2)
    frames = np.lib.stride_tricks.sliding_window_view(padded, recipe.n_fft)[:: recipe.hop]
    hann = np.hanning(recipe.n_fft + 1)[:-1].astype(np.float32)
    rfft(frames * hann)
    picture.save(io.BytesIO(), "PNG", compress_level=1, compress_type=2)  # type: ignore[attr-defined]


def transforms(_: object = None) -> None:
    """Half a second of work that needs nothing but a core."""
    from scipy.fft import rfft

    block = np.random.default_rng(0).standard_normal((64, 2048)).astype(np.float32)
    for _ in range(1500):
        rfft(block)


def scaling() -> float:
    """How much more two processes do than one, at this moment: 2 on two free cores."""
    with multiprocessing.Pool(2) as pool:
        one, _ = timed(lambda: pool.map(transforms, [0]))
        two, _ = timed(lambda: pool.map(transforms, [0, 1], chunksize=1))
    return 2 * one / two


def timed(action: Callable[[], object]) -> tuple[float, float]:
    """Seconds by the wall and of this process."""
    wall, cpu = time.perf_counter(), time.process_time()
    action()
    return time.perf_counter() - wall, time.process_time() - cpu


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--clips", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    import matplotlib

    matplotlib.use("Agg")
    times: dict[str, list[float]] = {}
    cpu: dict[str, list[float]] = {}

    def note(name: str, action: Callable[[], object], scale: float = 1.0) -> None:
        wall, own = timed(action)
        times.setdefault(name, []).append(wall * scale)
        cpu.setdefault(name, []).append(own * scale)

    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        paths = make_clips(folder, options.clips)
        recipe = AudioRecipe.infer(paths)
        picture = recipe.image(recipe.read(paths[0]))
        essay(paths[0], folder / "warm-up.png")
        gains = []
        for turn in range(options.rounds):
            gains.append(scaling())
            chosen = paths[turn * PEER_CLIPS :][:PEER_CLIPS]
            scale = options.clips / len(chosen)
            note("essay", lambda c=chosen: [essay(p, folder / "e.png") for p in c], scale)
            for workers in (1, 2):
                store = PictureCache(folder / f"{turn}-{workers}")
                draw = lambda s=store, w=workers: s.render_all(paths, recipe, workers=w)  # noqa: E731
                note(f"cold, {workers} process{'es' * (workers > 1)}", draw)
                if workers == 1:
                    note("warm", lambda s=store: PictureCache(s.root).render_all(paths, recipe))
                    note("bare", lambda: [bare(p, recipe, picture) for p in paths])
    print(f"two processes of transforms alone do {statistics.median(gains):.2f}x the work of one")
    middle = {name: statistics.median(values) for name, values in times.items()}
    own = {name: statistics.median(values) for name, values in cpu.items()}
    print(f"{options.clips} clips, medians of {options.rounds} rounds, {os.cpu_count()} cores")
    for name, seconds in middle.items():
        each = 1000 * seconds / options.clips
        print(f"{name:22} {seconds:8.3f} s  {each:8.3f} ms a clip  ({own[name]:.3f} s of CPU here)")
    one, two = middle["cold, 1 process"], middle["cold, 2 processes"]
    print(f"one process    {middle['essay'] / one:6.1f}x the essay's recipe (target 20)")
    print(f"two processes  {middle['essay'] / two:6.1f}x the essay's recipe (target 38)")
    print(f"one process    {one / middle['bare']:6.2f}x the bare cost      (target 1.35 at most)")
    print(
        f"warm           {one / middle['warm']:6.0f}x the cold, {two / middle['warm']:.0f}x of two"
    )


if __name__ == "__main__":
    main()
