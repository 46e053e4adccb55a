"""What we rely on in scipy."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_the_transform_is_scipys_without_its_import() -> None:
    """They agree to the last bit; neither it nor drawing a sound imports scipy's public package."""
    program = (
        "import sys, numpy as np\n"
        "from datasets.audio.upstream import real_fft\n"
        "from datasets.audio.settings import MelSettings\n"
        "rng = np.random.default_rng(0)\n"
        "MelSettings(rate=8000, n_fft=400).image(rng.standard_normal(8000))\n"
        "assert not {'scipy', 'scipy.fft', 'numpy.ma'} & set(sys.modules)\n"
        "import scipy.fft\n"
        "for shape, kind in (((32, 2048), 'f4'), ((3, 400), 'f4'), ((5, 372), 'f8'), ((1, 16), 'f4')):\n"
        "    x = rng.standard_normal(shape).astype(kind)\n"
        "    theirs = scipy.fft.rfft(x)\n"
        "    ours = real_fft()(x)\n"
        "    assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs), (shape, kind)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)
