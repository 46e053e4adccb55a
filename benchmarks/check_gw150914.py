"""Acceptance on real data: tiles and pictures of strain files against gwpy's q_transform, the peer.

    python benchmarks/check_gw150914.py ../shared/data/strain/*.hdf5 --at 1126259462.4 --out pictures

Without files it looks at a simulated merger.

Prints the largest differences: of whitened strain, of tile energies (relative), and of the pictures
(as a fraction of the energy, and of the clipped range 0-25.5), and the time and frequency at which
the chirp is loudest in each column. With --out it saves the four views as a row.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from benchmarks._record import parse
from datasets.demos import glitches
from datasets.strain.files import read_strain
from datasets.strain.qscan import qtransform
from datasets.strain.recipe import StrainRecipe
from datasets.strain.whitening import whiten

BAND = (10.0, 1200.0)


def check(path: str, at: float) -> None:
    from gwpy.segments import Segment
    from gwpy.signal.qtransform import q_scan
    from gwpy.timeseries import TimeSeries

    strain = read_strain(path, at=at)
    rate, centre = strain.rate, strain.trigger - strain.start
    search = (centre - 0.25, centre + 0.25)
    theirs = TimeSeries(strain.values, sample_rate=rate, t0=0)
    white = theirs.whiten(asd=theirs.asd(2, 1, window="hann", method="median"))
    ours = whiten(strain.values, rate)
    gram = qtransform(ours, rate, frange=BAND, search=search)
    peer, _ = q_scan(white, qrange=(4, 64), frange=BAND, search=Segment(*search))
    tiles = max(
        float(np.abs(mine / other.value - 1).max())
        for mine, other in zip(gram.energies, peer.energies, strict=True)
    )
    print(f"{Path(path).name}: loudest tile {gram.peak}")
    print(f"  whitened strain {np.abs(ours - white.value).max():.1e}, tile energies {tiles:.1e}")
    views = [(centre - v / 2, centre + v / 2) for v in (0.5, 1.0, 2.0, 4.0)]
    for (start, stop), image in zip(views, gram.images(views), strict=True):
        expected = theirs.q_transform(
            qrange=(4, 64), frange=BAND, gps=centre, outseg=(start, stop), logf=True
        ).value.T[:, : image.shape[1]]
        off = np.abs(image - expected)
        relative = (off / np.maximum(np.abs(expected), 0.1)).max()
        clipped = np.abs(np.clip(image, 0, 25.5) - np.clip(expected, 0, 25.5)).max() / 25.5
        print(f"  {stop - start:g} s view: values {relative:.1e}, clipped range {clipped:.1e}")
    (image,) = gram.images([(centre - 0.25, centre + 0.25)], width=500, height=500)
    frequencies = np.geomspace(*BAND, 500)
    image[frequencies > 400] = 0  # lone tiles of noise
    bright = np.flatnonzero(image.max(axis=0) > 10)
    for column in bright[:: max(1, len(bright) // 8)]:
        loud = frequencies[image[:, column] > 10]
        when = column / 1000 - 0.25
        print(f"  {when:+.3f} s: {loud.min():.0f} to {loud.max():.0f} Hz above an energy of 10")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("files", nargs="*")
    parser.add_argument("--at", type=float, default=1126259462.4)
    parser.add_argument("--out", type=Path)
    arguments = parse(parser)
    if not arguments.files:
        with tempfile.TemporaryDirectory() as folder:
            (row,) = glitches.write_demo(folder, per_class=1, classes=["Chirp_sim"])
            check(row["path"], row["gps"])
    for path in arguments.files:
        check(path, arguments.at)
        if arguments.out:
            from PIL import Image

            picture = StrainRecipe(layout="row", size=(300, 1200)).picture(path, at=arguments.at)
            arguments.out.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture).save(arguments.out / f"{Path(path).stem}.png")


if __name__ == "__main__":
    main()
