"""Reading strain: what is read, what is refused, and how much memory a refusal takes."""

import gzip
import re
import resource
import subprocess
import sys
import time
import zlib
from contextlib import contextmanager

import h5py
import numpy as np
import pytest

from datasets.core.errors import BadFile, SecondhandError, Unavailable
from datasets.strain.files import read_strain
from datasets.strain.frames import open_strain

START = 1_000_000_000.0
RATE = 4096
HEAD = b"# This file has 4096 samples per second\n# starting GPS 1000000000 duration 32\n"


def noise(seconds, rate=RATE, seed=0):
    return 1e-22 * np.random.default_rng(seed).standard_normal(round(seconds * rate))


def write(path, values, rate=RATE, start=START, **options):
    """Write a file in GWOSC's layout."""
    with h5py.File(path, "w") as file:
        data = file.create_dataset("strain/Strain", data=values, **options)
        data.attrs["Xspacing"], data.attrs["Xstart"] = 1 / rate, int(start)
        file["meta/Detector"], file["meta/GPSstart"] = "H1", int(start)
    return path


@contextmanager
def refuses(match, seconds=5.0, megabytes=300):
    """Check that BadFile is raised soon and without taking much memory."""
    before, start = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(BadFile, match=match):
        yield
    assert time.monotonic() - start < seconds
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < megabytes * 1024


# -- what is read


def test_a_span_around_the_trigger(tmp_path):
    values = noise(64)
    path = write(tmp_path / "a.hdf5", values, compression="gzip", chunks=(2048,))
    strain = read_strain(path, at=START + 30, context=16)
    assert (strain.rate, strain.start, strain.trigger) == (4096, START + 22, START + 30)
    assert strain.values.dtype == np.float64
    np.testing.assert_array_equal(strain.values, values[22 * RATE : 38 * RATE])
    assert strain.detector == "H1"
    assert strain.duration == 16


def test_near_the_end_the_span_moves(tmp_path):
    values = noise(40)
    path = write(tmp_path / "a.hdf5", values)
    strain = read_strain(path, at=START + 36.5)
    assert strain.start == START + 8
    np.testing.assert_array_equal(strain.values, values[8 * RATE :])


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [32, 100])
def test_without_a_trigger_the_loudest_tile(tmp_path, seconds):
    values, trigger = noise(seconds), seconds - 7.25
    t = np.arange(values.size) / RATE - trigger
    values += 2e-21 * np.exp(-((t / 0.01) ** 2)) * np.sin(2 * np.pi * 150 * t)
    path = write(tmp_path / "a.hdf5", values)
    assert read_strain(path).trigger == pytest.approx(START + trigger, abs=0.02)
    # The loudest tile between two other times is another one.
    other = read_strain(path, within=(5.0, 12.0)).trigger
    assert START + 5 <= other <= START + 12


def test_a_gap_beside_the_trigger_is_passed_by(tmp_path):
    values = noise(100)
    values[20 * RATE : 21 * RATE] = np.nan
    path = write(tmp_path / "a.hdf5", values)
    strain = read_strain(path, at=START + 30)
    assert strain.start == START + 21
    assert np.isfinite(strain.values).all()
    # The search finds the long stretch by itself.
    assert START + 24 <= read_strain(path).trigger <= START + 97


@pytest.mark.parametrize("gap", [np.nan, np.inf, 0.0, 1e-21])
def test_a_gap_that_leaves_too_little_is_named(tmp_path, gap):
    values = noise(64)
    values[20 * RATE : 21 * RATE] = gap
    values[40 * RATE : 42 * RATE] = gap
    path = write(tmp_path / "a.hdf5", values)
    with pytest.raises(BadFile, match=r"1000000020.000-1000000021.000.*1000000040.000-1000000042"):
        read_strain(path, at=START + 30)
    assert read_strain(path, at=START + 30, context=16).start == START + 22
    with pytest.raises(BadFile, match=r"40.000-1000000042"):
        read_strain(path, at=START + 41)


@pytest.mark.parametrize("packed", [False, True])
def test_text_as_gwosc_writes_it(tmp_path, packed):
    values = noise(34, 1024)
    head = (
        "# Gravitational wave strain for GW1 for H1 (see http://losc.ligo.org)\n"
        "# This file has 1024 samples per second\n"
        "# starting GPS 1000000000 duration 34\n"
    )
    text = head + "\n".join(f"{v:.17e}" for v in values) + "\n"
    path = tmp_path / ("a.txt.gz" if packed else "a.txt")
    path.write_bytes(gzip.compress(text.encode()) if packed else text.encode())
    strain = read_strain(path, at=START + 17)
    np.testing.assert_array_equal(strain.values, values[1024 : 33 * 1024])
    assert (strain.rate, strain.start, strain.detector) == (1024, START + 1, "H1")


def test_text_without_a_header_says_which_lines_are_missing(tmp_path):
    path = tmp_path / "a.txt"
    values = noise(20, 512)
    values[5] = np.nan
    np.savetxt(path, values)
    with pytest.raises(BadFile, match="no sampling rate in its header") as error:
        read_strain(path, at=START + 10, context=16)
    lines = [f"{line}\n" for line in re.findall("'(#[^']+)'", str(error.value))]
    assert len(lines) == 2
    headed = tmp_path / "headed.txt"
    headed.write_text(lines[0].replace("4096", "512") + path.read_text())
    with pytest.raises(BadFile, match="no start time in its header"):
        read_strain(headed, at=START + 10, context=16)
    headed.write_text("".join(lines).replace("4096", "512") + path.read_text())
    with open_strain(headed) as source:
        assert (source.rate, source.start) == (512, 1126259446)
    strain = read_strain(headed, at=1126259446 + 10, context=16)
    np.testing.assert_allclose(strain.values, values[2 * 512 : 18 * 512], rtol=1e-15)


# -- what is refused


def test_outside_and_too_short(tmp_path):
    path = write(tmp_path / "a.hdf5", noise(20))
    with refuses(r"outside the file, which covers 1000000000.000 to 1000000020.000"):
        read_strain(path, at=START - 1)
    with refuses(r"outside"):
        read_strain(path, at=float("nan"))
    with refuses(r"32 s without gaps.*there are 20.000 s.*the ends of the file"):
        read_strain(path, at=START + 10)
    with refuses(r"the longest stretch has 20.000 s"):
        read_strain(path)
    needed = r"are needed on either side\. Missing: everything outside GPS 1000000000\.000-"
    for at, edge in ((1, "begins 1.000 s before"), (19, "ends 1.000 s after")):
        with refuses(rf"it {edge} the trigger; [\d.]+ s {needed}"):
            read_strain(path, at=START + at, context=16)
    with pytest.raises(SecondhandError, match="16 to 4096 s"):
        read_strain(path, at=START + 10, context=4)


def test_a_moment_that_was_not_measured_is_said_to_be_and_what_is_there_instead(tmp_path):
    values = noise(96)
    values[30 * RATE : 40 * RATE], values[60 * RATE : 70 * RATE] = np.nan, 1e-21
    path = write(tmp_path / "a.hdf5", values)
    gap, flat = (f"Missing: GPS 10000000{n}0.000-10000000{n + 1}0.000" for n in (3, 6))
    with refuses(rf"there is none at that time\. {gap} \(a gap\)"):
        read_strain(path, at=START + 35, context=16)
    with refuses(rf"there is none at that time\. {flat} \(constant\)"):
        read_strain(path, at=START + 65, context=16)
    with refuses(rf"it begins 1\.000 s before the trigger; .* on either side\. {gap} \(a gap\)"):
        read_strain(path, at=START + 41, context=16)


def test_dead_strain_has_no_loudest_tile(tmp_path):
    with refuses("no usable stretch of strain.* longest stretch has 0.000 s"):
        read_strain(write(tmp_path / "a.hdf5", np.zeros(40 * RATE)))


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (b"", "empty"),
        (b"\x89HDF\r\n\x1a\n" + bytes(50), "damaged HDF5"),
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "not strain: neither HDF5, GWF nor text"),
        (b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\n\xff\xdb", "not strain: neither HDF5, GWF"),
        ("Grüße\x85\u202e an alle\n".encode(), "one number per line: .*'Grüße'"),
        (b"hello\nworld\n", "'hello'"),
        (b"0.0 1e-21\n0.1 1e-21\n", "2 numbers in a line"),
        (HEAD + b"1\n\n2\n", "an empty or a very long line"),
        (HEAD + b"0.0 " * 1_000_000 + b"\n", "one number per line"),
        (HEAD.replace(b"32", b"1") + b"1e-21\n" * 4097, "more than 4096 samples"),
        (gzip.compress(b"1\n" * 99999, mtime=0)[:80], "decompressed"),
        (gzip.compress(b"", mtime=0), "rate"),
        (b"\x1f\x8b" + bytes(range(200)), "decompressed"),
    ],
)
def test_not_strain(tmp_path, content, match):
    path = tmp_path / "a.strain"
    path.write_bytes(content)
    with refuses(match):
        read_strain(path, at=START)


def test_what_cannot_be_opened(tmp_path):
    for path, reason in ((tmp_path / "missing.hdf5", "no such file"), (tmp_path, "is a folder")):
        with refuses(reason):
            read_strain(path, at=START)


def test_a_file_that_another_program_writes_is_not_damaged(tmp_path):
    path = write(tmp_path / "a.hdf5", noise(40))
    script = "import h5py, sys; file = h5py.File(sys.argv[1], 'r+'); print(flush=True); input()"
    writer = subprocess.Popen(
        [sys.executable, "-c", script, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    with writer:
        writer.stdout.readline()
        # Nothing is known of the file itself: a later run asks again.
        with pytest.raises(Unavailable, match=r"is held by another program .*close it there"):
            read_strain(path, at=START + 20)
        writer.communicate(b"\n")
    assert len(read_strain(path, at=START + 20).values)


def test_cut_hdf5(tmp_path):
    path = write(tmp_path / "a.hdf5", noise(40), chunks=(2048,), compression="gzip")
    content = path.read_bytes()
    for part in (0.99, 0.5, 0.1, 0.001):
        path.write_bytes(content[: int(len(content) * part)])
        with refuses("damaged HDF5"):
            read_strain(path, at=START + 20)


STRAIN = "strain/Strain"
SAMPLES = 40 * RATE


def dataset(name=STRAIN, **options):
    """Replace strain/Strain by another data set."""

    def build(file, _):
        del file[name]
        data = file.create_dataset(name, **options)
        data.attrs["Xspacing"], data.attrs["Xstart"] = 1 / RATE, int(START)

    return build


def link_at(name, link):
    """Replace a part of the file by a link to another file."""

    def build(file, secret):
        file.move(name, "elsewhere")
        file[name] = link(secret)

    return build


def external(file, secret):
    raw = secret.with_suffix(".bin")
    raw.write_bytes(noise(40).tobytes())
    dataset(shape=(SAMPLES,), dtype="f8", external=[(str(raw), 0, h5py.h5f.UNLIMITED)])(file, None)


def virtual(file, secret):
    del file[STRAIN]
    layout = h5py.VirtualLayout(shape=(SAMPLES,), dtype="f8")
    layout[:] = h5py.VirtualSource(str(secret), STRAIN, shape=(SAMPLES,))
    data = file.create_virtual_dataset(STRAIN, layout)
    data.attrs["Xspacing"], data.attrs["Xstart"] = 1 / RATE, int(START)


def without_chunks(file, _):
    """Leave out two seconds of chunks, which HDF5 reads as zeros."""
    dataset(shape=(SAMPLES,), dtype="f8", chunks=(RATE,))(file, None)
    values = noise(40)
    file[STRAIN][: 15 * RATE] = values[: 15 * RATE]
    file[STRAIN][17 * RATE :] = values[17 * RATE :]


def bomb(file, _):
    dataset(shape=(SAMPLES,), dtype="f8", chunks=(SAMPLES,), compression="gzip")(file, None)
    packer = zlib.compressobj()
    raw = b"".join(packer.compress(bytes(1 << 22)) for _ in range(64)) + packer.flush()
    assert len(raw) < 1 << 19  # 256 MB when unpacked
    file[STRAIN].id.write_direct_chunk((0,), raw)


def attribute(name, value):
    return lambda file, _: file[STRAIN].attrs.__setitem__(name, value)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (
            link_at(STRAIN, lambda secret: h5py.ExternalLink(str(secret), "/strain/Strain")),
            "Link",
        ),
        (
            link_at("strain", lambda secret: h5py.ExternalLink(str(secret), "/strain")),
            "Link",
        ),
        (link_at("meta", lambda secret: h5py.ExternalLink(str(secret), "/meta")), "Link"),
        (
            link_at(STRAIN, lambda _: h5py.SoftLink("/elsewhere")),
            "Link, which is not followed",
        ),
        (external, "other files, which are not opened"),
        (virtual, "other files, which are not opened"),
        # Claimed sizes, data that unpack to more, and filters that load code.
        (dataset(shape=(10**10,), dtype="f8", chunks=(16,)), "has the shape"),  # 80 GB
        (dataset(shape=(SAMPLES,), dtype="f8", chunks=(64,)), "but no data"),
        (
            dataset(shape=(1 << 25,), dtype="f8", chunks=(1 << 25,), compression="gzip"),
            "chunks of",
        ),
        (without_chunks, "missing from the file"),
        pytest.param(bomb, "decompresses to more than", marks=pytest.mark.slow),
        (dataset(data=noise(40), chunks=(RATE,), compression="lzf"), "HDF5 filters .*are run"),
        # Layouts and attributes.
        (lambda f, _: f.move("strain", "Strain"), "no strain/Strain"),
        (lambda f, _: f.move(STRAIN, "strain/data"), "no strain/Strain"),
        (lambda f, _: f[STRAIN].attrs.pop("Xspacing"), "no attribute Xspacing"),
        (lambda f, _: f[STRAIN].attrs.pop("Xstart"), "no attribute Xstart"),
        (attribute("Xspacing", 0.0), "Xspacing is 0"),
        (attribute("Xspacing", np.nan), "Xspacing is nan"),
        (attribute("Xspacing", 1.0), "rate: 1 Hz"),
        (attribute("Xspacing", "x"), "not a number"),
        (attribute("Xstart", [1, 2]), "not a number"),
        (attribute("Xstart", -5), "not a GPS time"),
        (dataset(data=np.zeros((4, 4))), "not a row of numbers"),
        (dataset(data=np.array(["a"] * 9, dtype="S1")), "not a row of numbers"),
        (dataset(data=np.zeros(0)), "0 samples"),
        (lambda f, _: (f.move(STRAIN, "x"), f.create_group(STRAIN)), "not a data"),
    ],
)
def test_hdf5_that_must_not_be_trusted(tmp_path, build, match):
    secret = write(tmp_path / "secret.hdf5", noise(40))
    with h5py.File(write(tmp_path / "a.hdf5", noise(40)), "r+") as file:
        build(file, secret)
    with refuses(match, megabytes=100):
        read_strain(tmp_path / "a.hdf5", at=START + 20)


def test_flipped_bytes_are_bad_files_or_strain(tmp_path):
    path = write(tmp_path / "a.hdf5", noise(20, 256), rate=256)
    content = bytearray(path.read_bytes())
    rng = np.random.default_rng(0)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(150):
        damaged = bytearray(content)
        for at in rng.integers(0, min(len(content), 6000), 3):  # where the structure is
            damaged[at] = rng.integers(256)
        path.write_bytes(damaged)
        try:
            read_strain(path, at=START + 10, context=16)
            outcomes["read"] += 1
        except BadFile:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 0


@pytest.mark.slow
def test_gzip_bombs(tmp_path):
    head = HEAD.replace(b"32", b"4096")
    for number, filling in enumerate([b"0", b"0\n", b"\n", b"# more\n"]):
        path = tmp_path / f"{number}.txt.gz"
        with gzip.open(path, "wb", compresslevel=9) as file:
            file.write(head)
            for _ in range(64):
                file.write(filling * ((1 << 20) // len(filling)))
        assert path.stat().st_size < 1 << 20
        with refuses("decompresses to more|one number|header", megabytes=100):
            read_strain(path, at=START)


def test_sources_read_by_the_piece(tmp_path):
    values = noise(40)
    with open_strain(write(tmp_path / "a.hdf5", values)) as source:
        np.testing.assert_array_equal(source.read(100, 200), values[100:200])
        assert source.samples == values.size
