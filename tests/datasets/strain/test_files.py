"""Reading strain: what is read, what is refused, and how much memory a refusal takes."""

import gzip
import os
import re
import resource
import time
from contextlib import contextmanager

import h5py
import numpy as np
import pytest

from datasets.core.errors import BadFile, SecondhandError
from datasets.strain.files import read_strain
from datasets.strain.formats import open_strain

START = 1_000_000_000.0
RATE = 4096


def noise(seconds, rate=RATE, seed=0):
    return 1e-22 * np.random.default_rng(seed).standard_normal(round(seconds * rate))


def write(path, values, rate=RATE, start=START, **options):
    """A file in GWOSC's layout."""
    with h5py.File(path, "w") as file:
        data = file.create_dataset("strain/Strain", data=values, **options)
        data.attrs["Xspacing"], data.attrs["Xstart"] = 1 / rate, int(start)
        file["meta/Detector"], file["meta/GPSstart"] = "H1", int(start)
    return path


@contextmanager
def refused(match, seconds=5.0, megabytes=300):
    """BadFile, soon, and without taking much memory."""
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    with pytest.raises(BadFile, match=match):
        yield
    assert time.monotonic() - began < seconds
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
    values, when = noise(seconds), seconds - 7.25
    t = np.arange(values.size) / RATE - when
    values += 2e-21 * np.exp(-((t / 0.01) ** 2)) * np.sin(2 * np.pi * 150 * t)
    path = write(tmp_path / "a.hdf5", values)
    assert read_strain(path).trigger == pytest.approx(START + when, abs=0.02)
    # the loudest between two other times is another one
    other = read_strain(path, within=(5.0, 12.0)).trigger
    assert START + 5 <= other <= START + 12


def test_a_gap_beside_the_trigger_is_passed_by(tmp_path):
    values = noise(100)
    values[20 * RATE : 21 * RATE] = np.nan
    path = write(tmp_path / "a.hdf5", values)
    strain = read_strain(path, at=START + 30)
    assert strain.start == START + 21
    assert np.isfinite(strain.values).all()
    # and the search finds the long stretch by itself
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
    with pytest.raises(BadFile, match="no header that says at what rate") as error:
        read_strain(path, at=START + 10, context=16)
    lines = [f"{line}\n" for line in re.findall("'(#[^']+)'", str(error.value))]
    assert len(lines) == 2
    headed = tmp_path / "headed.txt"
    headed.write_text(lines[0].replace("4096", "512") + path.read_text())
    with pytest.raises(BadFile, match="no header that says when"):
        read_strain(headed, at=START + 10, context=16)
    headed.write_text("".join(lines).replace("4096", "512") + path.read_text())
    with open_strain(headed) as source:
        assert (source.rate, source.start) == (512, 1126259446)
    strain = read_strain(headed, at=1126259446 + 10, context=16)
    np.testing.assert_allclose(strain.values, values[2 * 512 : 18 * 512], rtol=1e-15)


# -- what is refused


def test_outside_and_too_short(tmp_path):
    path = write(tmp_path / "a.hdf5", noise(20))
    with refused(r"outside, it covers 1000000000.000 to 1000000020.000"):
        read_strain(path, at=START - 1)
    with refused(r"outside"):
        read_strain(path, at=float("nan"))
    with refused(r"32 s without gaps.*20.000 s are there.*where the file ends"):
        read_strain(path, at=START + 10)
    with refused(r"the longest stretch has 20.000 s"):
        read_strain(path)
    with refused(r"1.000 s on the nearer side"):
        read_strain(path, at=START + 1, context=16)
    with pytest.raises(SecondhandError, match="16 to 4096 s"):
        read_strain(path, at=START + 10, context=4)


def test_a_moment_that_was_not_measured_is_said_to_be_and_what_is_there_instead(tmp_path):
    values = noise(96)
    values[30 * RATE : 40 * RATE], values[60 * RATE : 70 * RATE] = np.nan, 1e-21
    path = write(tmp_path / "a.hdf5", values)
    gap, flat = (f"Missing: GPS 10000000{n}0.000-10000000{n + 1}0.000" for n in (3, 6))
    with refused(rf"that moment itself is missing\. {gap} \(a gap\)"):
        read_strain(path, at=START + 35, context=16)
    with refused(rf"that moment itself is missing\. {flat} \(constant\)"):
        read_strain(path, at=START + 65, context=16)
    with refused(rf"1\.000 s on the nearer side\. {gap} \(a gap\)"):
        read_strain(path, at=START + 41, context=16)


def test_dead_strain_has_no_loudest_tile(tmp_path):
    with refused("of strain that varies, without gaps.* longest stretch has 0.000 s"):
        read_strain(write(tmp_path / "a.hdf5", np.zeros(40 * RATE)))


def test_not_strain(tmp_path):
    for name, content, match in [
        ("empty.hdf5", b"", "empty"),
        ("broken.hdf5", b"\x89HDF\r\n\x1a\n" + bytes(50), "broken HDF5"),
        (
            "picture.txt",
            b"\x89PNG\r\n\x1a\n" + bytes(100),
            "not strain: neither HDF5, GWF nor text",
        ),
        (
            "a.jpg",
            b"\xff\xd8\xff\xe0\0\x10JFIF\0\x01\x01\n\xff\xdb",
            "not strain: neither HDF5, GWF",
        ),
        (
            "prose.txt",
            "Grüße\x85\u202e an alle\n".encode(),
            "a line is expected, not 'Grüße\\\\x85",
        ),
        ("words.txt", b"hello\nworld\n", "'hello'"),
        ("two.txt", b"0.0 1e-21\n0.1 1e-21\n", "'0.0 1e-21'"),
        ("cut.txt.gz", gzip.compress(b"1\n" * 99999)[:80], "unpacked"),
        ("zero.txt.gz", gzip.compress(b""), "rate"),
        ("noise.gz", b"\x1f\x8b" + bytes(range(200)), "unpacked"),
    ]:
        path = tmp_path / name
        path.write_bytes(content)
        with refused(match):
            read_strain(path, at=START)
    with refused("cannot be read"):
        read_strain(tmp_path / "missing.hdf5", at=START)
    with refused("cannot be read"):
        read_strain(tmp_path, at=START)


def test_cut_hdf5(tmp_path):
    path = write(tmp_path / "a.hdf5", noise(40), chunks=(2048,), compression="gzip")
    content = path.read_bytes()
    for part in (0.99, 0.5, 0.1, 0.001):
        path.write_bytes(content[: int(len(content) * part)])
        with refused("broken HDF5"):
            read_strain(path, at=START + 20)


def hdf5(path, build):
    """A good file that `build` then spoils."""
    write(path, noise(40))
    with h5py.File(path, "r+") as file:
        build(file)
    return path


def replaced(**options):
    """Put another data set in the place of strain/Strain."""

    def build(file):
        del file["strain/Strain"]
        data = file.create_dataset("strain/Strain", **options)
        data.attrs["Xspacing"], data.attrs["Xstart"] = 1 / RATE, int(START)

    return build


def test_links_are_not_followed(tmp_path):
    secret = write(tmp_path / "secret.hdf5", noise(40))

    def external(file):
        del file["strain/Strain"]
        file["strain/Strain"] = h5py.ExternalLink(str(secret), "/strain/Strain")

    def external_group(file):
        del file["strain"]
        file["strain"] = h5py.ExternalLink(str(secret), "/strain")

    def soft(file):
        file.move("strain/Strain", "elsewhere")
        file["strain/Strain"] = h5py.SoftLink("/elsewhere")

    def meta(file):
        del file["meta"]
        file["meta"] = h5py.ExternalLink(str(secret), "/meta")

    for build in (external, external_group, soft, meta):
        with refused("Link, which is not followed"):
            read_strain(hdf5(tmp_path / "a.hdf5", build), at=START + 20)


def test_data_outside_the_file_are_not_read(tmp_path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(noise(40).tobytes())
    inner = write(tmp_path / "secret.hdf5", noise(40))
    samples = 40 * RATE

    def storage(file):
        replaced(shape=(samples,), dtype="f8", external=[(str(secret), 0, h5py.h5f.UNLIMITED)])(
            file
        )

    def virtual(file):
        del file["strain/Strain"]
        layout = h5py.VirtualLayout(shape=(samples,), dtype="f8")
        layout[:] = h5py.VirtualSource(str(inner), "strain/Strain", shape=(samples,))
        data = file.create_virtual_dataset("strain/Strain", layout)
        data.attrs["Xspacing"], data.attrs["Xstart"] = 1 / RATE, int(START)

    for build in (storage, virtual):
        with refused("other files, which are not opened"):
            read_strain(hdf5(tmp_path / "a.hdf5", build), at=START + 20)


def test_claims_of_size_are_checked_before_reading(tmp_path):
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_dataset("strain/Strain", shape=(10**10,), dtype="f8", chunks=(16,))
        data.attrs["Xspacing"], data.attrs["Xstart"] = 1 / RATE, int(START)
    assert os.path.getsize(path) < 5000  # 80 GB in a few kilobytes
    with refused("claims the shape"):
        read_strain(path, at=START + 20)
    with refused("holds nothing"):
        read_strain(
            hdf5(path, replaced(shape=(40 * RATE,), dtype="f8", chunks=(64,))), at=START + 20
        )
    with refused("in pieces of"):
        build = replaced(shape=(1 << 25,), dtype="f8", chunks=(1 << 25,), compression="gzip")
        read_strain(hdf5(path, build), at=START + 20)


def test_missing_chunks_are_not_zeros(tmp_path):
    def build(file):
        replaced(shape=(40 * RATE,), dtype="f8", chunks=(RATE,))(file)
        values = noise(40)
        file["strain/Strain"][: 15 * RATE] = values[: 15 * RATE]
        file["strain/Strain"][17 * RATE :] = values[17 * RATE :]

    with refused("missing from the file"):
        read_strain(hdf5(tmp_path / "a.hdf5", build), at=START + 20)


@pytest.mark.slow
def test_a_chunk_that_unpacks_to_more_than_it_should(tmp_path):
    import zlib

    def build(file):
        replaced(shape=(40 * RATE,), dtype="f8", chunks=(40 * RATE,), compression="gzip")(file)
        bomb = zlib.compressobj()
        raw = b"".join(bomb.compress(bytes(1 << 22)) for _ in range(64)) + bomb.flush()
        assert len(raw) < 1 << 19  # and 256 MB when unpacked
        file["strain/Strain"].id.write_direct_chunk((0,), raw)

    path = hdf5(tmp_path / "a.hdf5", build)  # packing it takes a second of a core
    with refused("unpacks to more than", megabytes=100):
        read_strain(path, at=START + 20)


def test_filters_that_would_load_code(tmp_path):
    build = replaced(data=noise(40), chunks=(RATE,), compression="lzf")
    with refused("filters.*not run"):
        read_strain(hdf5(tmp_path / "a.hdf5", build), at=START + 20)


@pytest.mark.parametrize(
    ("build", "match"),
    [
        (lambda f: f.move("strain", "Strain"), "no strain/Strain"),
        (lambda f: f.move("strain/Strain", "strain/data"), "no strain/Strain"),
        (lambda f: f["strain/Strain"].attrs.pop("Xspacing"), "no attribute Xspacing"),
        (lambda f: f["strain/Strain"].attrs.pop("Xstart"), "no attribute Xstart"),
        (lambda f: f["strain/Strain"].attrs.modify("Xspacing", 0.0), "Xspacing is 0"),
        (lambda f: f["strain/Strain"].attrs.modify("Xspacing", np.nan), "Xspacing is nan"),
        (lambda f: f["strain/Strain"].attrs.modify("Xspacing", 1.0), "1 samples a second"),
        (lambda f: f["strain/Strain"].attrs.__setitem__("Xspacing", "x"), "not a number"),
        (lambda f: f["strain/Strain"].attrs.__setitem__("Xstart", [1, 2]), "not a number"),
        (lambda f: f["strain/Strain"].attrs.modify("Xstart", -5), "no GPS time"),
        (replaced(data=np.zeros((4, 4))), "not a row of numbers"),
        (replaced(data=np.array(["a"] * 9, dtype="S1")), "not a row of numbers"),
        (replaced(data=np.zeros(0)), "0 samples"),
        (lambda f: (f.move("strain/Strain", "x"), f.create_group("strain/Strain")), "not a data"),
    ],
)
def test_wrong_layouts(tmp_path, build, match):
    with refused(match):
        read_strain(hdf5(tmp_path / "a.hdf5", build), at=START + 20)


def test_flipped_bytes_are_bad_files_or_strain(tmp_path):
    path = write(tmp_path / "a.hdf5", noise(20, 256), rate=256)
    content = bytearray(path.read_bytes())
    rng = np.random.default_rng(0)
    outcomes = {"read": 0, "refused": 0}
    for _ in range(150):
        spoilt = bytearray(content)
        for at in rng.integers(0, min(len(content), 6000), 3):  # where the structure is
            spoilt[at] = rng.integers(256)
        path.write_bytes(spoilt)
        try:
            read_strain(path, at=START + 10, context=16)
            outcomes["read"] += 1
        except BadFile:
            outcomes["refused"] += 1
    assert min(outcomes.values()) > 0


def test_text_with_a_million_columns(tmp_path):
    head = b"# This file has 4096 samples per second\n# starting GPS 1000000000 duration 32\n"
    path = tmp_path / "a.txt"
    path.write_bytes(head + b"0.0 " * 1_000_000 + b"\n")
    with refused("one number a line"):
        read_strain(path, at=START)


@pytest.mark.slow
def test_gzip_bombs(tmp_path):
    head = b"# This file has 4096 samples per second\n# starting GPS 1000000000 duration 4096\n"
    for number, filling in enumerate([b"0", b"0\n", b"\n", b"# more\n"]):
        path = tmp_path / f"{number}.txt.gz"
        with gzip.open(path, "wb", compresslevel=9) as file:
            file.write(head)
            for _ in range(64):
                file.write(filling * ((1 << 20) // len(filling)))
        assert path.stat().st_size < 1 << 20
        with refused("unpacks to more|one number|header", megabytes=100):
            read_strain(path, at=START)


def test_text_longer_than_its_header_says(tmp_path):
    path = tmp_path / "a.txt"
    head = "# This file has 64 samples per second\n# starting GPS 1000000000 duration 1\n"
    path.write_text(head + "1e-21\n" * 65)
    with refused("more than 64 samples"):
        read_strain(path, at=START)


def test_sources_read_by_the_piece(tmp_path):
    values = noise(40)
    with open_strain(write(tmp_path / "a.hdf5", values)) as source:
        np.testing.assert_array_equal(source.read(100, 200), values[100:200])
        assert source.samples == values.size
