"""WAV files with the chunks that recorders write."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import soundfile


def recording(
    file: Path, *, guano: str = "", wamd: dict[int, bytes] | None = None, comment: str = ""
) -> str:
    """Return a WAV file of 0.1 s of noise with the given chunks behind the samples."""
    file.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(0).uniform(-0.5, 0.5, 801)
    soundfile.write(file, noise, 8000, format="WAV", subtype="PCM_U8")  # an odd number of bytes
    content = file.read_bytes()
    content += b"\0" * (len(content) % 2)
    fields = b"".join(struct.pack("<HI", n, len(v)) + v for n, v in (wamd or {}).items())
    info = b"INFO" + chunk(b"IART", b"AudioMoth 24") + chunk(b"ICMT", comment.encode() + b"\0")
    for name, text in (
        (b"LIST", info if comment else b""), (b"guan", guano.encode()), (b"wamd", fields),
    ):  # fmt: skip
        content += chunk(name, text) if text else b""
    file.write_bytes(content[:4] + struct.pack("<I", len(content) - 8) + content[8:])
    return str(file)


def chunk(name: bytes, content: bytes) -> bytes:
    return name + struct.pack("<I", len(content)) + content + b"\0" * (len(content) % 2)
