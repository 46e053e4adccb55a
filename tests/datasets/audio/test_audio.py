"""datasets.audio.decode: what is read, how it is cut, and which bad files are refused."""

import io
import itertools
import logging
import os
import struct
import tracemalloc

import av
import numpy as np
import pytest
import soundfile
import soxr
from PIL import Image

from datasets.audio.decode import (
    BLOCK,
    NO_SIGNAL,
    AudioInfo,
    check_whole,
    loudness,
    probe,
    read_audio,
    windows,
)
from datasets.core import processes
from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.core.processes import CRASHED, check_files_isolated
from tests.phones import m4a

RATE = 16_000


def tone(seconds=1.0, rate=RATE, hz=440.0, level=0.5):
    return (level * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate)) / rate)).astype("f")


def save(path, samples, rate=RATE, **options):
    soundfile.write(path, samples, rate, **options)
    return path


@pytest.mark.parametrize(
    ("name", "options", "tolerance"),
    [
        ("a.wav", {"subtype": "PCM_16"}, 4e-5),
        ("a.wav", {"subtype": "PCM_24"}, 1e-6),
        ("a.wav", {"subtype": "FLOAT"}, 0),
        ("a.rf64", {"format": "RF64"}, 4e-5),
        ("a.flac", {}, 4e-5),
        ("a.aiff", {}, 4e-5),
        ("a.ogg", {}, 0.05),
        ("a.opus", {"format": "OGG", "subtype": "OPUS"}, 0.05),
        ("a.mp3", {}, 0.05),
    ],
)
def test_reads_every_format(tmp_path, name, options, tolerance):
    expected = tone()
    path = save(tmp_path / name, expected, **options)
    signal, rate = read_audio(path)
    assert probe(path) == AudioInfo(RATE, 1, len(signal), len(signal) / RATE)
    assert rate == RATE
    assert signal.dtype == np.float32
    middle = slice(2000, 14_000)  # codecs fade in and out
    assert np.abs(signal[middle] - expected[middle]).max() <= tolerance


def test_a_name_may_be_no_utf_8(tmp_path):
    path = tmp_path / os.fsdecode(b"a\xff.wav")
    os.rename(save(tmp_path / "a.wav", tone()), path)
    assert probe(path).rate == read_audio(path)[1] == RATE


def ffmpeg(path):
    """Return all samples of a recording, float [samples], as FFmpeg itself decodes it."""
    with av.open(str(path)) as file:
        parts = [frame.to_ndarray() for frame in file.decode(file.streams.audio[0])]
    values = np.concatenate(parts, axis=1)
    if values.dtype.kind == "i":
        values = values / 2.0 ** (8 * values.itemsize - 1)
    return values.mean(axis=0)


@pytest.mark.parametrize("channels", [1, 2])
@pytest.mark.parametrize(("codec", "tolerance"), [("aac", 1e-6), ("alac", 1e-6)])
def test_a_recording_of_a_phone_is_read_as_ffmpeg_reads_it(tmp_path, codec, channels, tolerance):
    t = np.arange(3 * 22_050) / 22_050
    chirp = 0.4 * np.sin(2 * np.pi * (300 + 100 * t) * t)
    path = tmp_path / "a.m4a"
    path.write_bytes(m4a([chirp, 0.5 * chirp][:channels], 22_050, codec))
    signal, rate = read_audio(path)
    assert (rate, len(signal)) == (22_050, len(chirp)), "without what the encoder put before it"
    assert probe(path) == AudioInfo(22_050, channels, len(chirp), 3.0)
    expected = ffmpeg(path)[: len(signal)].clip(-1, 1)
    np.testing.assert_allclose(signal, expected, atol=tolerance)
    assert np.corrcoef(signal, chirp)[0, 1] > 0.99, "and where it was recorded"
    for start, end in ((0.0, 0.1), (0.03, 0.5), (1.51, 2.2), (2.9, 3.0)):
        part, _ = read_audio(path, start=start, end=end)
        excerpt = signal[round(start * rate) : round(end * rate)]
        assert len(part) == len(excerpt)
        assert np.corrcoef(part, excerpt)[0, 1] > 0.99  # AAC fills bands with generated noise


def replaced(data, boxes, at, new, old=0):
    """Replace `old` bytes of a container and adjust the sizes of the boxes around them."""
    for name in boxes:
        first = data.index(name) - 4
        (length,) = struct.unpack_from(">I", data, first)
        data = data[:first] + struct.pack(">I", length + len(new) - old) + data[first + 4 :]
    return data[:at] + new + data[at + old :]


def test_a_recording_with_a_cover_is_read_as_without(tmp_path):
    cover = io.BytesIO()
    Image.new("RGB", (64, 64), "red").save(cover, "PNG")
    box = struct.pack(">I4sII", 16 + len(cover.getvalue()), b"data", 14, 0) + cover.getvalue()
    for name in (b"covr", b"ilst", b"meta", b"udta"):
        if name == b"meta":
            box = struct.pack(">4xI4s8x4s13x", 33, b"hdlr", b"mdir") + box
        box = struct.pack(">I4s", 8 + len(box), name) + box
    data = m4a(tone(), RATE)
    path = tmp_path / "a.m4a"
    path.write_bytes(data)
    bare, _ = read_audio(path)
    path.write_bytes(replaced(data, [b"moov"], data.index(b"mvhd") - 4, box))
    with av.open(str(path)) as file:
        assert len(file.streams.video) == 1
    np.testing.assert_array_equal(read_audio(path)[0], bare)


def test_a_recording_cut_together_is_heard_as_it_was_cut(tmp_path):
    noise = np.random.default_rng(0).uniform(-0.9, 0.9, RATE).astype("f")
    data = m4a(noise, RATE, "alac")
    # Two parts: duration in milliseconds, first sample, speed.
    parts = struct.pack(">IIiIIiI", 2, 500, 0, 65536, 250, RATE // 2, 65536)
    at = data.index(b"elst") + 8
    path = tmp_path / "a.m4a"
    path.write_bytes(replaced(data, [b"moov", b"trak", b"edts", b"elst"], at, parts, 16))
    signal, _ = read_audio(path)
    np.testing.assert_allclose(signal, noise[: RATE * 3 // 4], atol=5e-5)
    part, _ = read_audio(path, start=0.45, end=0.6)
    np.testing.assert_array_equal(part, signal[7200:9600])


def test_quicktimes_container_is_read_too(tmp_path):
    path = tmp_path / "a.m4a"
    path.write_bytes(m4a(tone(), RATE, container="mov"))
    signal, _ = read_audio(path)
    np.testing.assert_allclose(signal, ffmpeg(path)[: len(signal)].clip(-1, 1), atol=1e-6)
    assert len(signal) == RATE


def test_span_is_the_same_samples_as_the_whole(tmp_path):
    noise = np.random.default_rng(0).uniform(-1, 1, RATE * 3).astype("f")
    path = save(tmp_path / "a.flac", noise)
    full, _ = read_audio(path)
    part, _ = read_audio(path, start=1.25, end=2.0)
    np.testing.assert_array_equal(part, full[20_000:32_000])
    middle, _ = read_audio(path, longest=1.0)
    np.testing.assert_array_equal(middle, full[RATE : 2 * RATE])
    beyond, _ = read_audio(path, start=2.5, end=99)
    np.testing.assert_array_equal(beyond, full[40_000:])


def test_many_blocks_make_one_signal(tmp_path, monkeypatch):
    noise = np.random.default_rng(0).uniform(-1, 1, (5000, 3)).astype("f")
    path = save(tmp_path / "a.wav", noise, subtype="FLOAT")
    monkeypatch.setattr("datasets.audio.decode.BLOCK", 700)
    np.testing.assert_allclose(read_audio(path)[0], noise.mean(axis=1), atol=1e-7)


def test_resamples_as_soxr_does(tmp_path):
    path = save(tmp_path / "a.wav", tone(), subtype="FLOAT")
    signal, rate = read_audio(path, rate=8000)
    assert rate == 8000
    np.testing.assert_allclose(signal, soxr.resample(tone(), RATE, 8000), atol=1e-6)


def test_resampling_stays_within_full_scale(tmp_path):
    square = np.sign(tone(hz=100)).astype("f")
    signal, _ = read_audio(save(tmp_path / "a.wav", square), rate=44_100)
    assert np.abs(signal).max() == 1.0


def test_channels_are_averaged(tmp_path):
    left, right = tone(hz=300), tone(hz=700)
    path = save(tmp_path / "a.wav", np.stack([left, right], 1), subtype="FLOAT")
    np.testing.assert_allclose(read_audio(path)[0], (left + right) / 2, atol=1e-7)


@pytest.mark.parametrize(("gain", "offset"), [(0.98, 0), (0.8, 0), (0.6, 0), (0.8, 0.05)])
def test_channels_that_cancel_give_the_louder_one(tmp_path, caplog, gain, offset):
    expected = tone() + np.float32(offset)
    stereo = np.stack([-gain * tone() + offset, expected], 1)
    path = save(tmp_path / f"{gain}{offset}.wav", stereo, subtype="FLOAT")
    with caplog.at_level(logging.WARNING):
        signal, _ = read_audio(path)
        read_audio(path, end=0.5)
    np.testing.assert_allclose(signal, expected, atol=1e-7)
    assert caplog.text.count("channels cancel when averaged, so only channel 2") == 1, "once a file"


def test_silent_and_related_channels_do_not_count_as_cancelling(tmp_path, caplog):
    rng = np.random.default_rng(0)
    noise, other = rng.normal(0, 0.1, (2, RATE))
    pairs = (
        (np.full(RATE, 0.02), np.full(RATE, -0.02)),
        (noise, np.roll(noise, 9)),
        (noise, 0.5 * other - 0.5 * noise),
        (noise, -0.3 * noise),
    )
    for number, pair in enumerate(pairs):
        signal, _ = read_audio(save(tmp_path / f"{number}.wav", np.stack(pair, 1), subtype="FLOAT"))
        np.testing.assert_allclose(signal, np.mean(pair, axis=0), atol=1e-6)
    assert "cancel" not in caplog.text


def test_small_signals_on_large_offsets_are_measured_about_their_mean(tmp_path, caplog):
    call = 1e-3 * tone()
    pair = np.stack([0.9 + 0.8 * call, -0.9 - call], 1)
    long = np.tile(pair, (3 * BLOCK // 2 // len(pair), 1))  # several blocks
    signal, _ = read_audio(save(tmp_path / "a.wav", long, subtype="FLOAT"))
    np.testing.assert_allclose(signal, long[:, 1], atol=1e-6)
    assert "only channel 2" in caplog.text
    offset = np.float32(0.9) + np.zeros(RATE, np.float32)
    assert loudness(offset, RATE) == -np.inf
    expected = loudness(call.astype(np.float32), RATE)
    assert loudness(offset + call.astype(np.float32), RATE) == pytest.approx(expected, abs=0.05)


def test_one_live_channel_of_many_does_not_count_as_cancelling(tmp_path, caplog):
    channels = np.zeros((RATE, 32), "f")
    channels[:, 3] = tone()
    signal, _ = read_audio(save(tmp_path / "a.wav", channels, subtype="FLOAT"))
    np.testing.assert_allclose(signal, tone() / 32, atol=1e-7)
    assert "cancel" not in caplog.text


# --- bad files ------------------------------------------------------------------------------------


def sound(kind="WAV", samples=None, **options):
    """Return the bytes of a sound file."""
    buffer = io.BytesIO()
    soundfile.write(buffer, tone() if samples is None else samples, RATE, format=kind, **options)
    return buffer.getvalue()


def patch_header(data, position, layout, value):
    """Overwrite a number in the header, at an offset or behind a name."""
    if isinstance(position, tuple):
        position = data.index(position[0]) + position[1]
    data = bytearray(data)
    struct.pack_into(layout, data, position, value)
    return bytes(data)


def refuse(path, reason, readers=(probe, read_audio)):
    """Check that a file is refused before much memory is taken."""
    for read in readers:
        tracemalloc.start()
        try:
            with pytest.raises(BadFile, match=reason) as error:
                read(path)
            assert tracemalloc.get_traced_memory()[1] < 20e6
        finally:
            tracemalloc.stop()
        assert str(path) in str(error.value)


WAV, PHONE = sound(), m4a(tone(), RATE)
FLAC_SAMPLES = np.random.default_rng(0).uniform(-0.5, 0.5, 5 * RATE)
FLAC = sound("FLAC", FLAC_SAMPLES)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty file"),
        (sound(samples=np.zeros(0, "f")), "too short: 0 samples"),
        (sound(samples=np.zeros(1, "f")), r"too short: 1 sample \("),
        (patch_header(WAV, 24, "<I", 2_000_000_000), "implausible header: 2000000000 Hz"),
        (patch_header(WAV, 24, "<I", 1), "implausible header: 1 Hz"),
        (patch_header(WAV, 22, "<H", 500), "implausible header: 500 channels"),
        *((np.random.default_rng(n).bytes(5000), "decoded|support|too short|implausible") for n in range(5)),
        # Videos.
        (b"\x1aE\xdf\xa3" + bytes(1000), "extract its sound"),
        (b"RIFF\0\1\0\0AVI LIST" + bytes(1000), "extract its sound"),
        (b"\0\0\1\xba" + bytes(1000), "extract its sound"),
        (b"OggS" + bytes(24) + b"\x80theora" + bytes(1000), "extract its sound"),
        (PHONE.replace(b"soun", b"vide"), "a video, not an audio file: extract its sound"),
        # Containers that are inconsistent or truncated.
        *((patch_header(PHONE, (name, at), ">I", 2**31), "damaged or truncated")
          for name, at in ((b"stsz", 12), (b"stts", 8))),
        (patch_header(PHONE, (b"stsc", 8), ">I", 2**31), "damaged or truncated"),
        (patch_header(PHONE, (b"esds", 21), ">B", 0x6B), "mp3.* in an MP4 container is not supported"),
        (patch_header(PHONE, (b"moov", 4), ">I", 0), "without sound|contains no sound"),
        (PHONE + struct.pack(">I4sI4s", 16, b"udta", 8, b"cmov"), "damaged or truncated"),
        (PHONE + struct.pack(">I4s", 9, b"mdat"), "damaged or truncated"),
        *((PHONE[:cut], "truncated") for cut in (30, 100, PHONE.index(b"stsz") + 20)),
    ],
)  # fmt: skip
def test_a_header_beyond_belief_is_refused_at_once(tmp_path, content, reason):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    refuse(path, reason)


def test_what_is_no_file_is_refused(tmp_path):
    refuse(tmp_path / "no.wav", "there is no such file")
    refuse(tmp_path, "not a file, but a folder, a pipe")
    if hasattr(os, "mkfifo"):  # opening a pipe must not hang
        os.mkfifo(tmp_path / "a.wav")
        refuse(tmp_path / "a.wav", "a pipe, socket or device, not a file")


def with_sample(value):
    samples = tone()
    samples[500] = value
    return sound(samples=samples, subtype="FLOAT")


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((sound(kind)[:44], "truncated|cannot be decoded|0 samples")
          for kind in ("WAV", "FLAC", "AIFF", "OGG", "MP3")),
        (FLAC[:40_000] + FLAC[40_020:], "damaged|truncated|decoded"),
        *((with_sample(value), "NaN or infinite") for value in (np.nan, np.inf, -np.inf)),
        (sound(samples=tone() * 32768, subtype="FLOAT"), "samples up to 163"),
    ],
    ids=lambda value: f"{len(value)} bytes" if isinstance(value, bytes) else value,
)  # fmt: skip
def test_bad_samples_are_refused_when_they_are_read(tmp_path, content, reason):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    with pytest.raises(BadFile, match=reason):
        read_audio(path)


def no_count(flac):
    """Clear the number of samples in STREAMINFO, as an encoder that writes to a pipe leaves it."""
    return flac[:21] + bytes([flac[21] & 0xF0]) + bytes(4) + flac[26:]


STEREO = np.random.default_rng(1).uniform(-0.5, 0.5, (3 * RATE, 2))
UNSTATED = {
    f"wav {length:x}": patch_header(WAV, 40, "<I", length)
    for length in (0, 0x7FFFF000, 0x7FFFFFDB, 0x7FFFFFFF, 0x80000000, 0xFFFFFFDB, 0xFFFFFFFF)
}
UNSTATED["wav, nothing stated"] = patch_header(UNSTATED["wav 0"], 4, "<I", 0)
for number, name in ((0, "0"), (2**64 - 1, "all")):
    header = patch_header(sound("RF64"), (b"ds64", 8), "<Q", number)
    UNSTATED[f"rf64 {name}"] = patch_header(header, (b"ds64", 16), "<Q", number)
LIST = b"LIST\x10\0\0\0INFOICMT\4\0\0\0dawn"
UNSTATED |= {
    f"{name}, then a comment": UNSTATED[name] + LIST for name in [*UNSTATED] if "rf" not in name
}
UNSTATED["flac"] = no_count(FLAC)
ID3 = b"ID3\4\0\0\0\0\1\0" + bytes(128)
UNSTATED["flac behind an ID3 tag"] = ID3 + no_count(FLAC)
UNSTATED["flac before an ID3 tag"] = no_count(FLAC) + b"TAG".ljust(128, b"\0")
UNSTATED["flac of 24 bits, stereo"] = no_count(sound("FLAC", STEREO, subtype="PCM_24"))


@pytest.mark.parametrize("content", UNSTATED.values(), ids=UNSTATED)
def test_a_recording_whose_length_was_never_written_is_read(tmp_path, content):
    path = tmp_path / "a.wav"
    path.write_bytes(content)
    whole, _ = read_audio(path)
    expected = {RATE: tone(), 5 * RATE: FLAC_SAMPLES, 3 * RATE: STEREO.mean(axis=1)}[len(whole)]
    np.testing.assert_allclose(whole, expected, atol=4e-5)
    assert probe(path) == AudioInfo(RATE, probe(path).channels, len(whole), len(whole) / RATE)
    seconds = len(whole) / RATE
    last, _ = read_audio(path, start=seconds - 0.1, end=seconds + 1)
    np.testing.assert_array_equal(last, whole[-RATE // 10 :])
    check_whole(path)


def test_an_empty_recording_has_no_length_to_find(tmp_path):
    path = tmp_path / "a.wav"
    for rest in (b"", b"LIST\x04\0\0\0INFO", b"LIST\x0b\0\0\0INFOISFT\0\0\0"):
        path.write_bytes(WAV[:40] + bytes(4) + rest)
        with pytest.raises(BadFile, match="too short: 0 samples"):
            read_audio(path)


@pytest.mark.parametrize("kept", [0.1, 0.3, 0.6, 0.9])
@pytest.mark.parametrize("kind", ["WAV", "RF64", "AIFF", "FLAC", "ID3 FLAC", "MP3"])
def test_of_a_recording_that_was_cut_off_what_is_there_is_read(tmp_path, kind, kept):
    tag, kind = ID3 if " " in kind else b"", kind.split()[-1]
    content, path = tag + sound(kind, FLAC_SAMPLES), tmp_path / "a.wav"
    path.write_bytes(content)
    whole, _ = read_audio(path)
    path.write_bytes(content[: int(kept * len(content))])
    signal, info = read_audio(path)[0], probe(path)
    assert info.duration + info.missing == pytest.approx(5, abs=0.01)
    assert info.duration / 5 == pytest.approx(kept, abs=0.08), "frames of 0.3 s"
    assert len(signal) == info.frames
    same = max(len(signal) - 4000, 0)  # a codec's frames depend on the next
    np.testing.assert_allclose(signal[:same], whole[:same], atol=1e-6)
    part, _ = read_audio(path, start=info.duration / 2)
    assert len(part) == pytest.approx(len(signal) / 2, abs=1)
    with pytest.raises(BadFile, match="outside the recording"):
        read_audio(path, start=4.99)
    with pytest.raises(BadFile, match=f"the last {info.missing:.3g} of .* --allow-truncated"):
        check_whole(path)


def mp3_of_variable_rate(rate, channels, quiet_first):
    """Noise and near-silence, a second each: a file, and how long its first frame is, which states how many follow."""
    noise = np.random.default_rng(0).normal(0, 0.2, (rate, channels))
    parts = [1e-3 * noise, noise] if quiet_first else [noise, 1e-3 * noise]
    buffer = io.BytesIO()
    soundfile.write(
        buffer, np.concatenate(parts), rate, format="MP3", bitrate_mode="VARIABLE",
        compression_level=0.3,
    )  # fmt: skip
    data = buffer.getvalue()
    second = data.index(data[:2], 4)
    assert b"Xing" in data[:second]
    return data, second


def decoded_by_ffmpeg(data):
    """Mean of the channels, [samples]."""
    with av.open(io.BytesIO(data)) as container:
        frames = [frame.to_ndarray().mean(axis=0) for frame in container.decode(audio=0)]
    return np.concatenate(frames)


@pytest.mark.parametrize("quiet_first", [False, True])
@pytest.mark.parametrize(
    ("rate", "channels"), [(44100, 1), (48000, 2), (22050, 2), (16000, 1), (8000, 1)]
)
def test_an_mp3_of_variable_rate_is_read_whole_without_a_header(
    tmp_path, rate, channels, quiet_first
):
    data, first = mp3_of_variable_rate(rate, channels, quiet_first)
    frames, path = data[first:], tmp_path / "a.mp3"
    tag = b"ID3\x04\0\0\0\0\x02\0" + bytes(256)
    variants = {
        "streamed": frames,
        "tagged": tag + frames + b"TAG" + bytes(125),
        "joined": data + data,  # of which the first header states half
        "damaged": b"\xff\0" + frames[2:],  # its first frame is none
    }
    for name, content in variants.items():
        path.write_bytes(content)
        expected = decoded_by_ffmpeg(content)
        signal, _ = read_audio(path)
        assert len(signal) == pytest.approx(len(expected), abs=3 * 1152), name
        assert len(signal) == pytest.approx(probe(path).frames, abs=1152), name
        # Decoders differ in the delay that they leave out.
        middle = expected[len(expected) // 2 - rate // 4 : len(expected) // 2 + rate // 4]
        shift = np.correlate(signal, middle, "valid").argmax()
        np.testing.assert_allclose(
            signal[shift : shift + len(middle)], middle, atol=1e-2, err_msg=name
        )
        part, _ = read_audio(path, start=1.25, end=1.5)
        np.testing.assert_allclose(part, signal[round(1.25 * rate) : round(1.5 * rate)], atol=2e-3)


def test_a_header_that_claims_gigabytes_costs_what_is_there(tmp_path):
    path = tmp_path / "a.wav"
    for content, claimed in (
        (patch_header(WAV, 40, "<I", 0xF0000000), 0xF0000000),
        (patch_header(sound("RF64"), (b"ds64", 16), "<Q", 80 * 10**9), 80 * 10**9),
        (patch_header(sound("FLAC"), (b"fLaC", 22), ">I", 2**32 - 1), 2 * (2**32 - 1)),
    ):
        path.write_bytes(content)
        refuse(path, "the last .* are missing", (check_whole,))
        assert probe(path).missing == pytest.approx(claimed / 2 / RATE, rel=1e-3)
        np.testing.assert_allclose(read_audio(path)[0], tone(), atol=4e-5)


def flac_frames(bits):
    """A FLAC file of one frame of constant samples of so many bits (RFC 9639)."""
    info = struct.pack(">HH3s3s", 4096, 4096, bytes(3), bytes(3))
    info += (RATE << 44 | (bits - 1) << 36 | 4096).to_bytes(8) + bytes(16)
    return b"fLaC\x80\0\0\x22" + info + bytes(64)


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.flac", flac_frames(12), "FLAC with 12 bits"),
        ("a.flac", flac_frames(20), "FLAC with 20 bits"),
        ("a.flac", flac_frames(32), "FLAC with 32 bits"),
        ("a.oga", b"OggS" + bytes(24) + b"\x7fFLAC" + bytes(1000), "FLAC in an Ogg container"),
        ("a.ogg", b"OggS" + bytes(24) + b"Speex   " + bytes(1000), "Speex in an Ogg container"),
        ("a.gsm", b"\xd2" + bytes(1000), "GSM610 without a header"),
        ("notes.raw", bytes(1000), "samples without a header"),
        ("NOTES.RAW", b"text", "samples without a header"),
        ("a.wav", b"\xff\xf1" + bytes(1000), "AAC"),
        ("a.amr", b"#!AMR\n" + bytes(1000), "AMR"),
    ],
)
def test_a_format_that_is_not_read_is_called_by_its_name(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BadFile, match=f"{reason}.*convert it to WAV or FLAC"):
        read_audio(tmp_path / name)


def test_gsm_in_a_wav_file_is_read_from_any_sample(tmp_path):
    t = np.arange(24_000) / 8000
    path = save(tmp_path / "a.wav", 0.5 * np.sin(6000 * t), 8000, subtype="GSM610")
    whole, _ = read_audio(path)
    assert np.corrcoef(whole[:24_000], np.sin(6000 * t))[0, 1] > 0.99
    np.testing.assert_array_equal(read_audio(path, start=1.5, end=2)[0], whole[12_000:16_000])


@pytest.mark.forks
@pytest.mark.parametrize(
    ("tables", "edits"),
    [
        ({"stsz": (1, 2**25), "stsc": (1, 1, 2**25, 1)}, 1),  # packets of one byte
        ({"stts": (1, 17, 1), "stsc": (1, 1, 2**31 - 1, 1)}, 1),  # packets of one sample
        ({"stts": (1, 17, 2**32 - 1), "stsc": (1, 1, 2**31 - 1, 1)}, 1),  # read as one sample
        ({"stsz": (1, 2**16), "stsc": (1, 1, 2**16, 1)}, 2**10),  # an edit list that repeats
    ],
)
def test_a_container_that_makes_hours_of_one_packet(tmp_path, monkeypatch, tables, edits):
    data = m4a(tone(), RATE)
    for name, numbers in tables.items():
        at = data.index(name.encode()) + 8
        data = (
            data[:at] + struct.pack(f">{len(numbers)}I", *numbers) + data[at + 4 * len(numbers) :]
        )
    at = data.index(b"elst") + 8
    data = data[:at] + struct.pack(">I", edits) + data[at + 4 :]
    path = tmp_path / "a.m4a"
    path.write_bytes(data)
    # FFmpeg takes 1.3 GB for the first one.
    monkeypatch.setattr(processes, "ROOM", 1 << 30)
    (found,) = check_files_isolated(check_whole, [str(path)])
    assert isinstance(found, Rejected)
    assert found.path == str(path)
    assert "damaged or truncated" in found.reason or found.reason == CRASHED


def test_a_container_whose_samples_are_in_another_file(tmp_path):
    """FFmpeg may read the other file, but here it must not."""
    noise = np.random.default_rng(0).uniform(-0.9, 0.9, (2, RATE)).astype("f")
    # Noise does not compress, so all packets have one size.
    recording, other = (m4a(signal, RATE, "alac") for signal in noise)
    (tmp_path / "other").write_bytes(other)
    name = str(tmp_path / "other").encode()
    tail = struct.pack(">HH", 2, len(name)) + name + b"\0" * (len(name) % 2)
    alias = bytes(4 + 10 + 28 + 12 + 64 + 16 + 4 + 16) + tail + struct.pack(">HH", 0xFFFF, 0)
    alias += bytes(max(0, 160 - len(alias)))
    entry = struct.pack(">I4s", 8 + len(alias), b"alis") + alias
    at = recording.index(b"dref") - 4
    (old,) = struct.unpack_from(">I", recording, at)
    new = struct.pack(">I4sII", 16 + len(entry), b"dref", 0, 1) + entry
    path = tmp_path / "a.m4a"
    boxes = (b"moov", b"trak", b"mdia", b"minf", b"dinf")
    path.write_bytes(replaced(recording, boxes, at, new, old))
    options = {"enable_drefs": "1", "use_absolute_path": "1"}
    with av.open(str(path), options=options) as file:
        first = next(file.decode(audio=0)).to_ndarray()
    with av.open(str(tmp_path / "other")) as file:
        np.testing.assert_array_equal(first, next(file.decode(audio=0)).to_ndarray())
    refuse(path, "contains no sound")


def test_spans_that_cannot_be(tmp_path, monkeypatch):
    path = save(tmp_path / "a.wav", tone())
    with pytest.raises(BadFile, match="3 s is outside the recording, which lasts 1 s"):
        read_audio(path, start=3)
    for start, end in ((-1, None), (1, 1), (2, 1), (float("nan"), None)):
        with pytest.raises(SecondhandError, match="not a valid span"):
            read_audio(path, start=start, end=end)
    monkeypatch.setattr("datasets.audio.decode.MAX_SAMPLES", 10_000)
    with pytest.raises(SecondhandError, match="Read it in windows"):
        read_audio(path)
    assert len(read_audio(path, end=0.5)[0]) == 8000


# --- windows and loudness -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "spans"),
    [
        ((20, 5), [(0, 5), (5, 10), (10, 15), (15, 20)]),
        ((12, 5), [(0, 5), (5, 10), (7, 12)]),  # the last window ends with the recording
        ((10, 4, 0.5), [(0, 4), (2, 6), (4, 8), (6, 10)]),
        *(((length, 5), [(0, length)]) for length in (0.2, 5, 5.04)),
        *(((length, 5), [(0, 5), (length - 5, length)]) for length in (5.1, 5.4)),
    ],
)
def test_windows(arguments, spans):
    assert windows(*arguments) == spans


@pytest.mark.parametrize("overlap", [0, 0.3, 0.9])
@pytest.mark.parametrize("length", [5.6, 17.3, 61])
def test_every_moment_is_covered(length, overlap):
    spans = windows(length, 5, overlap)
    assert spans[0][0] == 0
    assert spans[-1][1] == pytest.approx(length)
    assert all(end - start == pytest.approx(5) for start, end in spans)
    assert all(b[0] <= a[1] + 1e-9 for a, b in itertools.pairwise(spans))


@pytest.mark.parametrize("arguments", [(0, 5), (5, 0), (5, 1, 1), (5, 1, -0.1), (np.inf, 1)])
def test_windows_that_cannot_be(arguments):
    with pytest.raises(SecondhandError, match="invalid settings: duration="):
        windows(*arguments)


def test_a_faint_call_of_a_bat_is_a_signal():
    rate = 384_000
    call = np.zeros(rate // 2, "f")
    call[1000:][: rate // 200] = tone(0.005, rate, 45e3, level=0.005)
    assert loudness(call, rate) == pytest.approx(-52.0, abs=0.1), "half of 10 ms at -49 dBFS"


def test_loudness():
    assert loudness(tone(level=1.0), RATE) == pytest.approx(-3.01, abs=0.01)
    signal = np.zeros(10 * RATE, "f")
    signal[48_000:49_600] = tone(0.1, level=0.1)  # a short call in silence
    assert loudness(signal, RATE) == pytest.approx(-23.0, abs=0.1)
    assert loudness(np.zeros(100, "f"), RATE) == loudness(np.zeros(0, "f"), RATE) == -np.inf
    noise = np.random.default_rng(0).standard_normal(RATE).astype("f")
    assert loudness(0.3 + 1e-4 * noise, RATE) < NO_SIGNAL  # a constant offset is no signal
