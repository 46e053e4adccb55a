"""The simulated glitches: their formulas, their loudness, and their files."""

import h5py
import numpy as np
import pytest
from scipy import signal

from datasets.sources import glitches
from datasets.sources.glitches import (
    CLASSES,
    detector_density,
    first_density,
    optimal_snr,
    simulate,
    write_demo,
    write_hdf5,
)
from datasets.strain.files import read_strain
from datasets.strain.qscan import qtransform, whiten

RATE = 4096
T = np.arange(-8 * RATE, 8 * RATE) / RATE


class Middle(np.random.Generator):
    """A generator that always draws the middle of the range."""

    def __init__(self):
        super().__init__(np.random.PCG64(0))

    def uniform(self, low=0.0, high=1.0, size=None):
        return (low + high) / 2

    def integers(self, low, high=None, **_):
        return (low + high) // 2


def instantaneous_frequency(wave, times):
    """Return the instantaneous frequency at some times, from the analytic signal."""
    phase = np.unwrap(np.angle(signal.hilbert(wave)))
    return np.interp(times, T, np.gradient(phase, T) / (2 * np.pi))


def test_the_design_curve():
    # The published curve, LIGO-T0900288, has about 1.9e-23 and 4.0e-24 strain/rtHz at 20 and 100
    # Hz.
    np.testing.assert_allclose(np.sqrt(detector_density([20, 100])), [1.9e-23, 4e-24], rtol=0.1)
    assert 150 < np.arange(10, 2000)[detector_density(np.arange(10, 2000)).argmin()] < 350
    assert detector_density(1.0) == detector_density(10.0)


@pytest.mark.slow  # the import takes seconds
def test_the_curves_against_those_of_lalsimulation():
    lal = pytest.importorskip("lal", reason="its curves come with the extra gw")
    lalsimulation = pytest.importorskip("lalsimulation")
    f = np.setdiff1d(np.arange(20, 1000), np.arange(475, 486))  # without a suspension line
    published = lal.CreateREAL8FrequencySeries("S", 0, 0, 1, lal.DimensionlessUnit, 1001)
    lalsimulation.SimNoisePSDaLIGOZeroDetHighPowerGWINC(published, 9.0)
    design = np.sqrt(published.data.data[f])
    np.testing.assert_allclose(np.sqrt(detector_density(f)), design, rtol=0.02)
    f = np.arange(40, 1000)
    required = [lalsimulation.SimNoisePSDiLIGOSRD(float(x)) for x in f]
    np.testing.assert_allclose(np.sqrt(first_density(f)), np.sqrt(required), rtol=0.12)


def test_between_the_first_detectors_and_the_latest():
    f = np.array([30.0, 100.0, 1000.0])
    assert (first_density(f) > 10 * detector_density(f)).all()
    strain = simulate("No_Glitch_sim", rng=1, duration=64, age=0.5)
    measured = dict(zip(*signal.welch(strain.values, RATE, nperseg=RATE), strict=True))
    geometric_mean = np.sqrt(first_density(100.0) * detector_density(100.0))
    near = np.mean([measured[float(hz)] for hz in range(95, 106)])
    assert near == pytest.approx(geometric_mean, rel=0.15)


def test_noise_has_the_design_curve():
    strain = simulate("No_Glitch_sim", rng=1, duration=128)
    f, density = signal.welch(strain.values, RATE, nperseg=8192)
    for low, high in ((20, 40), (40, 100), (100, 400), (400, 1200)):
        band = (f >= low) & (f < high)
        ratio = (density[band] / detector_density(f[band])).mean()
        assert ratio == pytest.approx(1, abs=0.06)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("label", "low", "high"),
    [("Blip_sim", 8, 60), ("Koi_Fish_sim", 100, 1000), ("Chirp_sim", 8, 60)],
)
def test_loudness_is_in_its_range(label, low, high):
    rhos = []
    for seed in range(12):
        quiet = simulate("No_Glitch_sim", rng=seed).values
        loud = simulate(label, rng=seed)
        # The noise is drawn first, so equal seeds give equal noise.
        h = loud.values - quiet
        f = np.fft.rfftfreq(h.size, 1 / RATE)
        power = 4 * np.abs(np.fft.rfft(h) / RATE) ** 2 / detector_density(f)
        rhos.append(np.sqrt(np.trapezoid(power[f >= 10], f[f >= 10])))
    assert low <= min(rhos) < max(rhos) <= high * 1.001
    assert max(rhos) > 1.5 * min(rhos)


def test_the_chirp_is_newtonian_and_rings_down():
    wave = glitches.chirp(Middle(), T)
    mass = 25 * 4.925491e-6  # seconds; the middle of the range
    ring = (1 - 0.63 * 0.31**0.3) / (2 * np.pi * mass * 2**1.2)
    tau = 5 / 256 * (np.pi * ring) ** (-8 / 3) * mass ** (-5 / 3)  # before coalescence at t = 0
    times = np.array([-0.3, -0.2, -0.1, -0.05, -0.02])  # from 27.5 Hz on
    expected = (5 / (256 * (tau - times))) ** 0.375 * mass**-0.625 / np.pi
    np.testing.assert_allclose(instantaneous_frequency(wave, times), expected, rtol=0.05)
    assert 280 < ring < 340
    ends = instantaneous_frequency(wave, np.array([0.001]))
    assert ends == pytest.approx(ring, rel=0.1)
    # The amplitude falls by a factor e in Q / πf.
    envelope = np.abs(signal.hilbert(wave))
    fall = np.interp(0.002, T, envelope) / np.interp(0.004, T, envelope)
    assert fall == pytest.approx(np.exp(0.002 * np.pi * ring / (2 * 0.31**-0.45)), rel=0.1)
    # There is no jump where the two meet.
    assert np.abs(np.diff(wave)).max() < 2 * np.pi * ring / RATE * 1.1


def test_scattered_light_arches():
    wave = glitches.scattered_light(Middle(), T)
    f_max, f_m = 57.5, 0.2
    times = np.array([-0.8, -0.4, 0.0, 0.4, 0.8])
    expected = f_max * np.abs(np.cos(2 * np.pi * f_m * times))
    np.testing.assert_allclose(instantaneous_frequency(wave, times), expected, rtol=0.05)


def test_the_whistle_is_a_v():
    wave = glitches.whistle(Middle(), T)
    times = np.array([-0.2, -0.1, 0.0, 0.1, 0.2])
    expected = 225 + (750 - 225) * np.abs(times / 0.325) ** 1.5
    np.testing.assert_allclose(instantaneous_frequency(wave, times), expected, rtol=0.05)


def test_blips_repeat():
    wave = glitches.repeating_blips(Middle(), T)
    tops, _ = signal.find_peaks(np.abs(signal.hilbert(wave)), height=0.5, distance=400)
    np.testing.assert_allclose(np.diff(T[tops]), 0.375, atol=0.002)
    assert len(tops) == 7


@pytest.mark.parametrize(
    ("label", "low", "high"),
    [
        ("Blip_sim", 60, 500),
        ("Tomte_sim", 20, 90),
        ("Koi_Fish_sim", 20, 350),
        ("Scattered_Light_sim", 15, 100),
        ("Whistle_sim", 130, 1000),
        ("Power_Line_sim", 55, 65),
    ],
)
def test_the_q_transform_finds_them_where_they_should_be(label, low, high):
    for seed in range(3):
        strain = simulate(label, rng=seed, duration=20)
        centre = strain.trigger - strain.start
        search = (centre - 1, centre + 1)
        peak = qtransform(whiten(strain.values, RATE), RATE, search=search).peak
        assert low <= peak.frequency <= high
        assert peak.energy > 15


def test_written_files_are_read_back(tmp_path):
    rows = write_demo(tmp_path, per_class=2, duration=17)
    assert len(rows) == 2 * len(CLASSES) == 18
    assert {row["label"] for row in rows} == set(CLASSES)
    assert all(row["label"].endswith("_sim") and row["simulated"] is True for row in rows)
    assert len({row["group"] for row in rows}) == 18
    for row in rows[::5]:
        strain = read_strain(row["path"], at=row["gps"], context=16)
        assert strain.trigger == row["gps"]
        with h5py.File(row["path"]) as file:
            assert file["quality/simple/DQmask"][()].all()
            assert b"SIMULATED" in file["meta/Description"][()]
    assert not list(tmp_path.glob("*/.*"))  # no temporary files


@pytest.mark.slow
def test_gwpy_reads_the_files_too(tmp_path):
    timeseries = pytest.importorskip("gwpy.timeseries")
    strain = simulate("Blip_sim", rng=0, duration=16, gps=1_126_259_446)
    write_hdf5(tmp_path / "a.hdf5", strain, "simulated")
    by_gwpy = timeseries.TimeSeries.read(tmp_path / "a.hdf5", format="hdf5.gwosc")
    np.testing.assert_allclose(by_gwpy.value, strain.values, rtol=1e-6)
    assert by_gwpy.t0.value == 1_126_259_446
    assert by_gwpy.sample_rate.value == RATE


def test_glitches_go_into_noise_of_the_users_own(tmp_path):
    noise = simulate("No_Glitch_sim", rng=9, duration=64)
    noise = type(noise)(
        noise.values * 1000, noise.rate, noise.start, noise.trigger
    )  # a noisier detector
    write_hdf5(tmp_path / "measured.hdf5", noise, "noise")
    (row,) = write_demo(
        tmp_path, per_class=1, classes=["Koi_Fish_sim"], noise=[tmp_path / "measured.hdf5"]
    )
    strain = read_strain(row["path"], at=row["gps"])
    low = round((strain.start - noise.start) * RATE)
    added = strain.values - noise.values[low : low + strain.values.size]
    centre = (strain.trigger - strain.start) * RATE
    assert abs(np.abs(added).argmax() - centre) < 0.2 * RATE
    rho = optimal_snr(added, RATE, 1e6 * detector_density(np.fft.rfftfreq(added.size, 1 / RATE)))
    assert 90 < rho < 1100  # relative to its own noise, a thousand times the design noise
