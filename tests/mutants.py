"""Valid files of every kind that is read, and seeded damage to them.

Equal seeds and numbers give equal mutants, so a fault can be reproduced.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from learners.rule.fitting import fit_rule
from tests.phones import avif, heic, m4a

Rng = np.random.Generator
KINDS = ("png", "jpeg", "wav", "flac", "hdf5", "csv", "config", "safetensors", "yaml",
         "heic", "avif", "m4a")  # fmt: skip
#: Values at which lengths, counts and sizes overflow.
EDGES = (0, 1, 2, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x10000, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)


# --- valid files ----------------------------------------------------------------------------------


def originals() -> dict[str, list[bytes]]:
    """Return valid files of each kind that needs no model."""
    rng = np.random.default_rng(0)
    return {
        "png": [*_pngs(rng)],
        "jpeg": [*_jpegs(rng)],
        "wav": [*_sounds(rng, "WAV", ("PCM_16", "PCM_24", "FLOAT", "IMA_ADPCM"))],
        "flac": [*_sounds(rng, "FLAC", ("PCM_16", "PCM_24"))],
        "hdf5": [strain_file(rng), strain_file(rng, chunks=True)],
        "csv": [CSV.encode()],
        "yaml": [YAML.encode()],
        **phones(rng),
    }


CSV = "path,label,group,split,fold,start,end,gps\n" + "".join(
    f"{label}{n}.jpg,{label},g{n % 2},{split},{n},,,\n"
    for label in ("cat", "dog")
    for n, split in enumerate(("train", "valid", "test", ""))
)
YAML = """# settings
data: [photos, more]
kind: picture
backbone: resnet18
size: 96
epochs: 3
lr: 6.0e-3
lr_mult: 100
flip: false
threshold: 0.9
cv: 5
out: runs/mine
"""


def _noise(rng: Rng, *shape: int) -> Any:
    return rng.integers(0, 256, shape, dtype=np.uint8)


def _pngs(rng: Rng) -> Iterator[bytes]:
    from PIL import Image, PngImagePlugin

    texts = PngImagePlugin.PngInfo()
    texts.add_text("note", "a text", zip=True)
    texts.add_itxt("title", "ein Titel")
    pictures = [
        Image.fromarray(_noise(rng, 24, 32, 3)),
        Image.fromarray(_noise(rng, 24, 32, 4)),
        Image.fromarray(_noise(rng, 24, 32)).convert("P"),
        Image.fromarray(_noise(rng, 24, 32).astype(np.uint16) * 257),
    ]
    for picture in pictures:
        out = io.BytesIO()
        picture.save(out, "PNG", pnginfo=texts)
        yield out.getvalue()
    out = io.BytesIO()
    pictures[0].save(out, "PNG", save_all=True, append_images=pictures[:1])
    yield out.getvalue()


def _jpegs(rng: Rng) -> Iterator[bytes]:
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = 6  # rotated by 90 degrees
    exif[0x010E] = "described"
    rgb = Image.fromarray(_noise(rng, 6, 8, 3)).resize((64, 48))
    for picture, options in (
        (rgb, {"exif": exif}),
        (rgb, {"progressive": True, "subsampling": 2}),
        (rgb.convert("L"), {"quality": 30}),
        (rgb.convert("CMYK"), {"optimize": True}),
    ):
        out = io.BytesIO()
        picture.save(out, "JPEG", **options)
        yield out.getvalue()


def phones(rng: Rng) -> dict[str, list[bytes]]:
    from PIL import Image

    photo = Image.fromarray(_noise(rng, 6, 8, 3)).resize((64, 48))
    sounds = rng.uniform(-0.5, 0.5, (2, 8000))
    return {
        "heic": [heic(photo), heic(photo.convert("RGBA"))],
        "avif": [avif(photo)],
        "m4a": [m4a(sounds, 8000), m4a(sounds[0], 8000, "alac")],
    }


def _sounds(rng: Rng, container: str, subtypes: tuple[str, ...]) -> Iterator[bytes]:
    import soundfile

    for n, subtype in enumerate(subtypes):
        out = io.BytesIO()
        noise = rng.uniform(-0.5, 0.5, (4000, 1 + n % 2))
        soundfile.write(out, noise, 8000, format=container, subtype=subtype)
        yield out.getvalue()


def strain_file(rng: Rng, *, chunks: bool = False, rate: int = 256, seconds: int = 24) -> bytes:
    """Return a strain file in GWOSC's layout."""
    import h5py

    out = io.BytesIO()
    with h5py.File(out, "w") as file:
        values = rng.standard_normal(rate * seconds) * 1e-21
        packed = {"chunks": (1024,), "compression": "gzip", "shuffle": True} if chunks else {}
        strain = file.create_dataset("strain/Strain", data=values, **packed)
        strain.attrs["Xspacing"], strain.attrs["Xstart"] = 1 / rate, 1126259446.0
        mask = file.create_dataset("quality/simple/DQmask", data=np.ones(seconds, np.uint32))
        mask.attrs["Xspacing"], mask.attrs["Xstart"] = 1.0, 1126259446.0
        file["quality/simple/DQShortnames"] = np.array([b"DATA"])
        file["meta/Detector"] = "H1"
    return out.getvalue()


# --- damage ---------------------------------------------------------------------------------------


def mutate(kind: str, sources: list[bytes], rng: Rng) -> bytes:
    """Return a damaged copy of one of `sources`: one or a few changes."""
    data = sources[rng.integers(len(sources))]
    changes: list[Callable[[bytes, Rng], bytes]] = [flip, cut, splice, number, repeat, drop, insert]
    if text := {"csv": mutate_csv, "config": mutate_json, "yaml": mutate_yaml}.get(kind):
        changes = [text] * 20 + changes
    if kind == "png":
        changes += [png_chunk] * 7
    if kind == "safetensors":
        changes += [header_of_tensors] * 14
    for _ in range(min(int(rng.geometric(0.6)), 6)):
        data = changes[rng.integers(len(changes))](data, rng)
    return data


def flip(data: bytes, rng: Rng) -> bytes:
    """Flip some bits, mostly near the beginning, where headers are."""
    changed = bytearray(data)
    end = _reach(data, rng)
    for _ in range(2 ** rng.integers(0, 6) if end else 0):
        changed[rng.integers(end)] ^= 1 << int(rng.integers(8))
    return bytes(changed)


def _reach(data: bytes, rng: Rng) -> int:
    return min(len(data), (48, 96, 512, len(data))[rng.integers(4)])


def cut(data: bytes, rng: Rng) -> bytes:
    return data[: rng.integers(len(data) + 1)]


def splice(data: bytes, rng: Rng) -> bytes:
    """Join the beginning of the file to some end of it."""
    return data[: rng.integers(len(data) + 1)] + data[rng.integers(len(data) + 1) :]


def number(data: bytes, rng: Rng) -> bytes:
    """Overwrite a number of 1, 2, 4 or 8 bytes, mostly with one of `EDGES`."""
    size = 2 ** int(rng.integers(4))
    if len(data) < size:
        return data
    end = _reach(data, rng)
    place = int(rng.integers(max(end - size, 0) + 1))
    value = EDGES[rng.integers(len(EDGES))] if rng.random() < 0.8 else int(rng.integers(2**62))
    value = -value if rng.random() < 0.2 else value
    order = ("little", "big")[rng.integers(2)]
    raw = (value % 2 ** (8 * size)).to_bytes(size, order)  # type: ignore[arg-type]
    return data[:place] + raw + data[place + size :]


def repeat(data: bytes, rng: Rng) -> bytes:
    first, last = sorted(rng.integers(len(data) + 1, size=2).tolist())
    times = 2 ** int(rng.integers(1, 8))
    return data[:first] + data[first:last][: 1 << 16] * times + data[last:]


def drop(data: bytes, rng: Rng) -> bytes:
    first = int(rng.integers(len(data) + 1))
    return data[:first] + data[first + 2 ** int(rng.integers(12)) :]


def insert(data: bytes, rng: Rng) -> bytes:
    place, size = int(rng.integers(len(data) + 1)), 2 ** int(rng.integers(10))
    return data[:place] + (bytes(size) if rng.random() < 0.3 else rng.bytes(size)) + data[place:]


def png_chunk(data: bytes, rng: Rng) -> bytes:
    """Damage, double, empty or move one chunk, with a correct checksum.

    A reader would stop at a wrong checksum and never see the damage.
    """
    chunks, at = [], 8
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        chunks.append((data[at + 4 : at + 8], data[at + 8 : at + 8 + length]))
        at += 12 + length
    if not chunks:
        return data
    which = int(rng.integers(len(chunks)))
    name, body = chunks[which]
    action = int(rng.integers(6))
    if action == 0 and len(body) >= 13:  # width, height, depth and colour in IHDR
        body = number(body[:13], rng) + body[13:]
    elif action == 1:
        chunks.insert(int(rng.integers(len(chunks) + 1)), chunks[which])
    elif action == 2:
        chunks.insert(int(rng.integers(len(chunks))), chunks.pop(which))
        name, body = chunks[which]
    elif action == 3:
        body = (zlib.compress(bytes(1 << 26)), b"", b"\0" * 4096)[rng.integers(3)]
    elif action == 4:
        names = (b"IDAT", b"PLTE", b"tRNS", b"iCCP", b"zTXt", b"acTL", b"fdAT", b"eXIf", b"gAMA")
        name = names[rng.integers(len(names))]
    else:
        body = flip(body, rng)
    chunks[which] = (name, body)
    packed = (
        struct.pack(">I", len(b)) + n + b + struct.pack(">I", zlib.crc32(n + b)) for n, b in chunks
    )
    return data[:8] + b"".join(packed)


def header_of_tensors(data: bytes, rng: Rng) -> bytes:
    """Change names, shapes, types or offsets of a safetensors file; adjust the header length."""
    (length,) = struct.unpack_from("<Q", data.ljust(8, b"\0"))
    header = mutate_json(data[8 : 8 + min(length, len(data))], rng)
    return struct.pack("<Q", len(header)) + header + data[8 + min(length, len(data)) :]


# --- damage to text -------------------------------------------------------------------------------


#: Replacements for a value.
NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, 2**31, 2**63, 10**12, -(10**12), 10**400, 1e308, 1e-320,
    float("nan"), float("inf"), float("-inf"), "", " ", "0", "nan", "1e999", "x" * 10_000, "\0", "\x1b[31m",
    "\ud800", "../../etc/passwd", "/etc/passwd", "hf-hub:someone/something", "http://localhost/x",
    "file:///etc/passwd", "<script>alert(1)</script>", "\u202egnp.exe", "%s%n{0}", "a\nb", [], {}, [[]],
    [[[[[]]]]], {"a": {"b": {"c": 1}}}, [0] * 1000, [None], [1, "a"], [float("nan")] * 3, "embedded",
    "vit_giant_patch14_dinov2",
)  # fmt: skip
YAML_NASTY = (
    "", "~", "true", "no", "-1", "0", "1e999", ".nan", "-.inf", "0x", "0o8", "1_000", "9" * 5000, "2024-99-99",
    "12:30:99", "!!int ''", "!!float x", "!!binary '?'", "!!python/object/apply:os.system [id]", "!!set {a, b}",
    "!!timestamp x", "&a [*a]", "*nothing", "[" * 3000, "{" * 3000, "{a: " * 300, "'open", '"\\0\\x1b"', "'\t'", "|\n  text",
    ">-\n x", "<<: 1", "[1, 2, [3, [4]]]", "{a: 1}", "../../etc/passwd", "x" * 100_000, "\u202e", "- 1", "? a",
    "!<tag:x> 1", "%YAML 9.9", "--- 1", "...", "@at", "`tick`", "auto", "best",
)  # fmt: skip
CSV_NASTY = (
    "", " ", "nan", "None", "unknown", "inf", "-1", "1e999", "9" * 5000, "\0", '"', '"open', "''", "\r", "\n", "a\nb",
    "../../../etc/passwd", "/etc/passwd", "/dev/zero", "/proc/self/mem", "x" * 5000, "x" * 200_000, "\u202e", "\x1b[2J", "\ufeff",
    "<b>", "=1+1", "|", ";", "\t", "\ud800", "train", "nowhere", "cat ", "CAT", "1" * 400, ".", "..", "\\\\host\\share",
)  # fmt: skip
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{name}'] * 9)}]\n"
    for name, after in zip("abcdefgh", "bcdefghi", strict=True)
)


def pick(values: tuple[Any, ...], rng: Rng) -> Any:
    return values[rng.integers(len(values))]


def mutate_json(data: bytes, rng: Rng) -> bytes:
    """Replace a value; drop, rename or double a key; or change the text itself."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = None
    action = int(rng.integers(10))
    if action < 7 and isinstance(content, dict | list) and content:
        holder, key = pick(tuple(_places(content)), rng)
        if action < 5 or isinstance(holder, list):
            holder[key] = _near(holder[key], rng) if rng.random() < 0.3 else pick(NASTY, rng)
        elif action == 5:
            del holder[key]
        else:
            holder[f"{key}{pick(('', '_', 's', chr(0)), rng)}"] = holder.pop(key)
        return json.dumps(content).encode("utf-8")
    text = data.decode("utf-8", "replace")
    if action == 7:
        return mutate_digits(text, rng).encode()
    if action == 8:  # a duplicate key
        return text.replace('"', '"format": 1, "', 1).encode()
    deep = 10 ** int(rng.integers(2, 6))
    opening = pick(("[", '{"a":'), rng) * deep
    place = int(rng.integers(len(text) + 1))
    return (text[:place] + opening + text[place:]).encode()


def _places(content: Any) -> list[tuple[Any, Any]]:
    """List every (holder, key) in nested lists and objects."""
    places: list[tuple[Any, Any]] = []
    todo = [content]
    while todo:
        holder = todo.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            places.append((holder, key))
            if isinstance(holder[key], dict | list):
                todo.append(holder[key])
    return places


def _near(value: Any, rng: Rng) -> Any:
    """Return a slightly different value of the same type."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + int(rng.integers(-3, 4)) if rng.random() < 0.5 else value * 1000
    if isinstance(value, float):
        return value * 10 ** float(rng.uniform(-6, 6))
    if isinstance(value, str):
        return value[: rng.integers(len(value) + 1)] + pick(("", "é", "_", "\0"), rng)
    if isinstance(value, list):
        return value[:-1] if rng.random() < 0.5 else value * 2
    return {}


def mutate_digits(text: str, rng: Rng) -> str:
    """Replace one digit by very many, a sign or an exponent."""
    places = [n for n, c in enumerate(text) if c.isdigit()]
    if not places:
        return text
    place = places[rng.integers(len(places))]
    new = pick(("9" * 5000, "9" * 30, "-1", "e99", "1e400", "NaN", "Infinity", ".", "0x1"), rng)
    return text[:place] + str(new) + text[place + 1 :]


def mutate_csv(data: bytes, rng: Rng) -> bytes:
    """Change, drop or double cells and rows, or change the encoding."""
    text = data.decode("utf-8", "surrogateescape")
    rows = [line.split(",") for line in text.split("\n")]
    row = rows[rng.integers(len(rows))] if rng.random() < 0.8 else rows[0]
    action = int(rng.integers(9))
    if action < 4:
        row[rng.integers(len(row))] = pick(CSV_NASTY, rng)
    elif action == 4:
        row.pop(int(rng.integers(len(row))))
    elif action == 5:
        row.insert(int(rng.integers(len(row) + 1)), pick(CSV_NASTY, rng))
    elif action == 6:
        rows[:] = rows * 50 if len(rows) < 2000 else rows[:1]
    elif action == 7:
        return text.encode(pick(("utf-16", "utf-8-sig", "utf-32"), rng), "replace")
    else:
        row.extend(["x"] * int(10 ** rng.integers(1, 5)))
    return "\n".join(",".join(cells) for cells in rows).encode("utf-8", "surrogatepass")


def mutate_yaml(data: bytes, rng: Rng) -> bytes:
    """Change a value, a key or a line, or add a document that expands without end."""
    lines = data.decode("utf-8", "replace").split("\n")
    place = int(rng.integers(len(lines)))
    key, colon, _ = lines[place].partition(":")
    action = int(rng.integers(9))
    if action < 4:
        lines[place] = f"{key}{colon or ':'} {pick(YAML_NASTY, rng)}"
    elif action == 4:
        lines[place] = str(pick(YAML_NASTY, rng))
    elif action == 5:
        lines.insert(place, lines[rng.integers(len(lines))])
    elif action == 6:
        lines[place] = " " * int(rng.integers(1, 5)) + lines[place]
    elif action == 7:
        return mutate_digits("\n".join(lines), rng).encode()
    else:
        lines = [*LAUGHS.split("\n")[:-1], f"data: *{pick(tuple('abcdefghi'), rng)}", *lines]
    return "\n".join(lines).encode("utf-8", "replace")


# --- models ---------------------------------------------------------------------------------------


def write_models(folder: Path) -> None:
    """Write a model folder of a tiny calibrated network for each kind of file."""
    import torch

    from datasets.audio.settings import MelSettings
    from datasets.kinds.views import TTAView
    from datasets.strain.settings import QScanSettings
    from learners.backbones.building import NetworkSpec, build
    from learners.model.bundle import Bundle, save_bundle
    from learners.rule.numbers.arrays import Outputs

    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(40, 3))
    spec = NetworkSpec("scratch/mnist_cnn", 3, size=32)
    spectrograms = {
        "picture": None,
        "sound": MelSettings(rate=8000, window=0.5, size=(32, 32)).to_dict(),
        "strain": QScanSettings(context=16.0, fmax=100.0, size=(32, 32)).to_dict(),
    }
    views = {"picture": TTAView(mirror=True), "sound": TTAView(shift=0.1)}
    for kind, spectrogram in spectrograms.items():
        network, built, preprocessing = build(spec, pretrained=False)
        with torch.inference_mode():
            width = network[0](torch.zeros(1, 3, 32, 32)).shape[1]  # type: ignore[union-attr,operator,index]
        features, reference = rng.normal(size=(40, width)), rng.normal(size=(50, width))
        trained = logits[rng.integers(0, len(logits), 50)]
        confidence = fit_rule(
            Outputs(logits, logits.argmax(1), features),
            Outputs(trained, trained.argmax(1), reference),
        )
        bundle = Bundle(
            built=network.eval(),
            spec=built,
            classes=["cat", "dog", "Vögel, groß"],
            preprocessing=preprocessing,
            spectrogram=spectrogram,
            tta_views=(TTAView(), views[kind]) if kind in views else (TTAView(),),
            rule=confidence,
            provenance={"data": "photos/", "seed": 3},
            metrics={"valid_accuracy": 0.75},
        )
        save_bundle(bundle, folder / kind)
