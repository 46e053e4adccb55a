"""The Q-transform and the whitening against gwpy, which the package itself never imports."""

import subprocess
import sys

import numpy as np
import pytest

from datasets.strain.qscan import (
    _fast,
    highest_frequency,
    qtransform,
    settling,
    spectral_density,
    spline_even,
    spline_uneven,
    whiten,
)

# Duration in seconds and rate in Hz of the compared segments; 8 s is quick.
SEGMENTS = [(8.0, 4096)] * 3 + [(16.0, 4096), (32.0, 4096), (8.0, 2048), (8.0, 16384)]
SEGMENTS += [(10.25, 4096), (12.5, 4096)]  # not powers of two


def segment(seed, duration, rate):
    """Return coloured noise with a sine-Gaussian, and its time."""
    rng = np.random.default_rng(seed)
    samples = round(duration * rate)
    t = np.arange(samples) / rate
    spectrum = np.fft.rfft(rng.standard_normal(samples))
    f = np.fft.rfftfreq(samples, 1 / rate)
    values = 1e-23 * np.fft.irfft(spectrum * (1 + (40 / np.maximum(f, 8)) ** 2), samples)
    centre = duration / 2 + rng.uniform(-1, 1)
    frequency, quality = rng.uniform(40, 250), rng.uniform(3, 30)
    width = quality / (2 * np.pi * frequency)
    wave = np.exp(-(((t - centre) / width) ** 2) / 2) * np.sin(2 * np.pi * frequency * t)
    return values + 1e-22 * wave, centre


def band(rate):
    return (10.0, min(2048.0, rate * 1200 / 4096))


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "duration", "rate"), [(i, *s) for i, s in enumerate(SEGMENTS)])
def test_tiles_and_pictures_agree_with_gwpy(seed, duration, rate):
    timeseries = pytest.importorskip("gwpy.timeseries")
    from gwpy.segments import Segment
    from gwpy.signal.qtransform import q_scan

    values, centre = segment(seed, duration, rate)
    search = (centre - 0.25, centre + 0.25)
    by_gwpy = timeseries.TimeSeries(values, sample_rate=rate, t0=0)
    asd = by_gwpy.asd(2, 1, window="hann", method="median")
    by_gwpy = by_gwpy.whiten(asd=asd)
    white = whiten(values, rate)
    np.testing.assert_allclose(white, by_gwpy.value, atol=1e-8)

    expected, _ = q_scan(by_gwpy, qrange=(4, 64), frange=band(rate), search=Segment(*search))
    gram = qtransform(white, rate, frange=band(rate), search=search)
    assert gram.peak.q == expected.plane.q
    assert gram.peak.frequency == pytest.approx(expected.peak["frequency"], rel=1e-12)
    assert gram.peak.time == pytest.approx(expected.peak["time"], abs=1e-9)
    np.testing.assert_allclose(gram.frequencies, expected.plane.frequencies, rtol=1e-12)
    for energy, row in zip(gram.energies, expected.energies, strict=True):
        # In nearly empty tiles all is rounding: 1e-5 of the median 1 is negligible.
        np.testing.assert_allclose(energy, row.value, rtol=1e-5, atol=1e-9)

    durations = [(centre - v / 2, centre + v / 2) for v in (0.5, 4.0)]
    for (start, stop), image in zip(
        durations, gram.images(durations, width=100, height=80), strict=True
    ):
        picture = expected.interpolate(
            tres=(stop - start) / 100, fres=80, logf=True, outseg=Segment(start, stop)
        )
        # arange may give gwpy an extra column.
        np.testing.assert_allclose(image, picture.value.T[:, :100], rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_the_whole_of_gwpys_q_transform_is_matched():
    timeseries = pytest.importorskip("gwpy.timeseries")
    values, centre = segment(99, 16.0, 4096)
    start, stop = centre - 0.5, centre + 0.5
    expected = timeseries.TimeSeries(values, sample_rate=4096, t0=0).q_transform(
        qrange=(4, 64), frange=(10, 1200), gps=centre, outseg=(start, stop), logf=True
    )
    gram = qtransform(whiten(values, 4096), 4096, search=(centre - 0.25, centre + 0.25))
    (image,) = gram.images([(start, stop)], width=1000, height=500)
    np.testing.assert_allclose(image, expected.value.T[:, :1000], rtol=1e-3, atol=1e-4)


def test_a_view_does_not_depend_on_the_views_beside_it():
    values, centre = segment(3, 8.0, 4096)
    gram = qtransform(whiten(values, 4096), 4096, search=(centre - 0.25, centre + 0.25))
    durations = [(centre - v / 2, centre + v / 2) for v in (0.5, 1.0, 2.0, 4.0)]
    images = gram.images(durations, width=56, height=224)
    for view, image in zip(durations, images, strict=True):
        assert image.shape == (224, 56)
        (single,) = gram.images([view], width=56, height=224)
        np.testing.assert_allclose(image, single, rtol=1e-5, atol=1e-6)


def test_the_loudest_tile_finds_a_sine_gaussian():
    rate, t = 4096, np.arange(16 * 4096) / 4096
    noise = np.random.default_rng(0).standard_normal(t.size)
    wave = 5 * np.exp(-(((t - 9.3) / 0.03) ** 2) / 2) * np.sin(2 * np.pi * 120 * t)
    peak = qtransform(whiten(noise + wave, rate), rate).peak
    assert peak.time == pytest.approx(9.3, abs=0.02)
    assert peak.frequency == pytest.approx(120, rel=0.1)
    assert 11 < peak.q < 46  # the wave has Q 23, between the planes 22.6 and 45
    assert peak.energy > 100


def test_energies_are_exponential_with_median_one_in_noise():
    white = np.random.default_rng(1).standard_normal(16 * 4096)
    gram = qtransform(white, 4096)
    for row in gram.energies:
        assert np.median(row) == pytest.approx(1, rel=1e-5)
    energies = np.concatenate(gram.energies)
    assert energies.mean() == pytest.approx(1 / np.log(2), rel=0.02)


def test_the_search_window_is_kept():
    rng, rate = np.random.default_rng(2), 4096
    x = rng.standard_normal(16 * rate)
    x[5 * rate] += 200  # far louder than anything in the window
    peak = qtransform(whiten(x, rate), rate, search=(9.0, 9.5)).peak
    assert 9.0 - 0.05 <= peak.time < 9.5
    assert qtransform(whiten(x, rate), rate).peak.time == pytest.approx(5, abs=0.05)


@pytest.mark.parametrize("duration", [32.0, 32 + 1 / 4096])  # an odd number of samples
def test_whitened_noise_is_white(duration):
    values, _ = segment(5, duration, 4096)
    white = whiten(values, 4096)[4096:-4096]
    assert white.std() == pytest.approx(1, abs=0.05)
    density = spectral_density(white, 4096)
    octaves = [density[30 * 20 * 2**i : 30 * 20 * 2 ** (i + 1)].mean() for i in range(5)]
    np.testing.assert_allclose(octaves, 2 / 4096, rtol=0.1)  # one-sided


def test_spectral_density_is_welchs_median():
    signal = pytest.importorskip("scipy.signal")
    values, _ = segment(6, 16.0, 4096)
    f, expected = signal.welch(values, 4096, nperseg=8192, average="median")
    density = spectral_density(values, 4096)
    np.testing.assert_allclose(density[:: len(values) // 8192], expected, rtol=1e-6)
    assert f[-1] == 2048


@pytest.mark.parametrize(
    ("values", "match"),
    [
        (np.zeros(32768), "no noise"),
        (np.full(32768, np.nan), "finite"),
        (np.ones(1000), "1000.* samples .at least"),
        (np.ones((2, 32768)), "2, 32768.* samples .at least"),
    ],
)
def test_what_cannot_be_whitened_is_refused(values, match):
    with pytest.raises(ValueError, match=match):
        whiten(values, 4096)


@pytest.mark.parametrize(
    ("seconds", "options", "match"),
    [
        (8, {"frange": (10, 2000)}, "above the limit of 1291"),
        (8, {"frange": (100, 10)}, "lower one first"),
        (8, {"qrange": (1, 3)}, "too low"),
        (2, {}, "too short"),
    ],
)
def test_bands_that_do_not_fit_are_refused(seconds, options, match):
    with pytest.raises(ValueError, match=match):
        qtransform(np.random.default_rng(0).standard_normal(seconds * 4096), 4096, **options)


def test_limits():
    assert highest_frequency(4096) == pytest.approx(1291.05, abs=0.1)
    assert settling(4096) == 1
    assert settling(512) == 2


@pytest.mark.slow
def test_nothing_heavy_is_imported():
    """Drawing does not import scipy either, which would delay an answer by half a second."""
    code = (
        "import sys, numpy as np, datasets.strain.files, datasets.strain.settings; "
        "from datasets.strain.qscan import qtransform, whiten; "
        "white = whiten(np.random.default_rng(0).standard_normal(8 * 4096), 4096); "
        "qtransform(white, 4096).images([(3.5, 4.5)], width=20, height=20); "
        "print(*({'scipy', 'numpy.ma'} & set(sys.modules))); "
        "import datasets.sources.glitches, datasets.sources.sounds; "
        "heavy = {'gwpy', 'torch', 'fastai', 'librosa', 'matplotlib', 'h5py', 'scipy.signal'}; "
        "print(*(heavy & set(sys.modules)))"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.split() == []


def test_splines_are_those_of_scipy():
    """Also with few nodes, at the ends, and behind the last node of a row of tiles."""
    interpolate = pytest.importorskip("scipy.interpolate")
    rng = np.random.default_rng(0)
    for n in (4, 5, 6, 17, 33, 64, 1000):
        for nodes, spline in (
            (np.arange(n, dtype=float), spline_even),
            (rng.random(n).cumsum(), spline_uneven),
        ):
            values = rng.exponential(size=(n, 7))
            at = np.r_[nodes[0], rng.uniform(nodes[0], nodes[-1], 90), nodes[-1], nodes[-1] + 0.2]
            expected = interpolate.make_interp_spline(nodes, values, k=3)(at)
            actual = (
                spline_even(values.T, at).T
                if spline is spline_even
                else spline_uneven(nodes, values, at)
            )
            np.testing.assert_allclose(actual, expected, rtol=0, atol=1e-11 * abs(expected).max())


def test_lengths_of_transforms_are_fast():
    fft = pytest.importorskip("scipy.fft")
    lengths = [*range(1, 2000), 139_263, 532_479, 8_200_000]
    assert [_fast(n) for n in lengths] == [fft.next_fast_len(n, real=True) for n in lengths]
