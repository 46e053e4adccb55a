"""Small imitations of public data sets in their true formats, and a server for them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import h5py
import numpy as np
import pytest
import soundfile
from PIL import Image

from datasets import catalog
from datasets.core.store import cache_root

Members = dict[str, bytes]


@dataclass
class Server:
    """What the server answers to each path, how, and which paths were requested."""

    files: Members = field(default_factory=dict)
    #: Whether each answer breaks off half way.
    breaks: bool = False
    requests: list[str] = field(default_factory=list)


def publish(
    server: Server, monkeypatch: pytest.MonkeyPatch, name: str, *contents: bytes, pin: bool = True
) -> None:
    """Serve the set's files and put their hashes into the catalogue."""
    files = []
    for file, content in zip(catalog.SETS[name].files, contents, strict=True):
        server.files["/" + file.url.removeprefix("https://")] = content
        hashes = (f"md5:{hashlib.md5(content).hexdigest()}",) if pin else ()
        files.append(replace(file, hashes=hashes, size=None))
    small = replace(catalog.SETS[name], files=tuple(files), gigabytes=1e-6)
    monkeypatch.setitem(catalog.SETS, name, small)


def zipped(members: Members) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def tarred(members: Members, *special: tarfile.TarInfo) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
        for info in special:
            archive.addfile(info)
    return out.getvalue()


def wav(seed: int) -> bytes:
    out = io.BytesIO()
    noise = np.random.default_rng(seed).uniform(-0.5, 0.5, 441)
    soundfile.write(out, noise, 44_100, format="WAV")
    return out.getvalue()


def jpeg(seed: int) -> bytes:
    out = io.BytesIO()
    noise = np.random.default_rng(seed).integers(0, 256, (24, 32, 3), dtype=np.uint8)
    Image.fromarray(noise).save(out, "JPEG")
    return out.getvalue()


#: (name, fold, target, category, esc10, src_file, take) as in meta/esc50.csv.
ESC50 = [
    ("1-100032-A-0.wav", 1, 0, "dog", True, 100032, "A"),
    ("1-110389-A-0.wav", 1, 0, "dog", True, 110389, "A"),
    ("2-114280-A-0.wav", 2, 0, "dog", True, 114280, "A"),
    ("2-114280-B-0.wav", 2, 0, "dog", True, 114280, "B"),
    ("1-17367-A-10.wav", 1, 10, "rain", True, 17367, "A"),
    ("5-181766-A-10.wav", 5, 10, "rain", True, 181766, "A"),
]


def esc50_zip() -> bytes:
    root = "ESC-50-33c8ce9eb2cf0b1c2f8bcf322eb349b6be34dbb6"
    lines = ["filename,fold,target,category,esc10,src_file,take"]
    lines += [",".join(map(str, row)) for row in ESC50]
    members = {f"{root}/audio/{row[0]}": wav(i) for i, row in enumerate(ESC50)}
    members[f"{root}/README.md"] = b"# ESC-50"
    members[f"{root}/meta/esc50.csv"] = "\n".join(lines).encode()
    return zipped(members)


#: (slice_file_name, fsID, start, end, salience, fold, classID, class)
URBAN = [
    ("100032-3-0-0.wav", 100032, 0.0, 0.317551, 1, 5, 3, "dog_bark"),
    ("100263-2-0-117.wav", 100263, 58.5, 62.5, 1, 5, 2, "children_playing"),
    ("100263-2-0-121.wav", 100263, 60.5, 64.5, 1, 5, 2, "children_playing"),
    ("344-3-0-0.wav", 344, 0.0, 4.0, 1, 10, 3, "dog_bark"),
]


def urbansound8k() -> bytes:
    lines = ["slice_file_name,fsID,start,end,salience,fold,classID,class"]
    lines += [",".join(map(str, row)) for row in URBAN]
    members = {f"UrbanSound8K/audio/fold{row[5]}/{row[0]}": wav(i) for i, row in enumerate(URBAN)}
    members["UrbanSound8K/audio/fold5/.DS_Store"] = b"\0"
    members["UrbanSound8K/metadata/UrbanSound8K.csv"] = "\n".join(lines).encode()
    return tarred(members)


def pets() -> tuple[bytes, bytes]:
    breeds = {"Abyssinian": 1, "american_bulldog": 2}
    lists: dict[str, list[str]] = {"trainval": [], "test": []}
    images: Members = {"images/Abyssinian_1.mat": b"no picture"}
    for breed, number in breeds.items():
        for index, split in enumerate(("trainval", "trainval", "test")):
            name = f"{breed}_{100 + index}"
            lists[split].append(f"{name} {number} {number} 1")
            images[f"images/{name}.jpg"] = jpeg(10 * number + index)
    notes = {f"annotations/{k}.txt": "\n".join([*v, ""]).encode() for k, v in lists.items()}
    notes["annotations/trimaps/._Abyssinian_100.png"] = b"\0"
    return tarred(images), tarred(notes)


def imagenette(size: str = "320") -> bytes:
    members: Members = {f"imagenette2-{size}/.DS_Store": b"\0"}
    for label, wordnet in enumerate(("n01440764", "n02102040")):
        for index, split in enumerate(("train", "train", "val")):
            name = f"imagenette2-{size}/{split}/{wordnet}/{wordnet}_{index}.JPEG"
            members[name] = jpeg(100 + 10 * label + index)
    return tarred(members)


def idx(values: np.ndarray, *, packed: bool = True) -> bytes:
    """An IDX file of bytes."""
    head = bytes([0, 0, 8, values.ndim]) + b"".join(n.to_bytes(4, "big") for n in values.shape)
    content = head + values.astype(np.uint8).tobytes()
    return gzip.compress(content) if packed else content


#: Labels of the training and of the test pictures.
DIGITS = ([5, 0, 4, 5, 0, 4], [7, 0, 4])


def digits(test: bool) -> np.ndarray:
    """Return pictures [n, 28, 28]."""
    return np.random.default_rng(test).integers(0, 256, (len(DIGITS[test]), 28, 28), np.uint8)


def mnist() -> tuple[bytes, bytes, bytes, bytes]:
    train, test = ((idx(digits(t)), idx(np.array(DIGITS[t]))) for t in (False, True))
    return *train, *test


#: (gravityspy_id, label, sample_type)
GLITCHES = [
    ("zhs0kbBnyE", "Blip", "train"),
    ("aWbPJLiJyk", "Blip", "validation"),
    ("sy0wm3S9Vc", "Koi_Fish", "train"),
    ("VXw4KBWl5g", "Koi_Fish", "test"),
]


def glitch_views(index: int) -> dict[str, np.ndarray]:
    """Return the four views of a glitch, float32 [1, 140, 170]."""
    rng = np.random.default_rng(index)
    names = ("0.5.png", "1.0.png", "2.0.png", "4.0.png")
    return {name: rng.random((1, 140, 170), dtype=np.float32) for name in names}


def gravityspy(folder: Path, *, event_time: bool = False) -> tuple[bytes, bytes]:
    with h5py.File(folder / "glitches.h5", "w") as file:
        for index, (name, label, split) in enumerate(GLITCHES):
            for view, value in glitch_views(index).items():
                file[f"{label}/{split}/{name}/{view}"] = value
    lines = ["event_time,gravityspy_id,label,sample_type" if event_time else "gravityspy_id,label,sample_type"]  # fmt: skip
    times = [f"{1132401286.5 + i}," if event_time else "" for i in range(len(GLITCHES))]
    lines += [time + ",".join(row) for time, row in zip(times, GLITCHES, strict=True)]
    return "\n".join(lines).encode(), (folder / "glitches.h5").read_bytes()


def event(server: Server, folder: Path, name: str = "GW150914", gps: float = 1126259462.4) -> None:
    """Serve an event as the event API does, with its strain."""
    place = f"eventapi/json/GWTC-1-confident/{name}/v3"
    strain = []
    for detector in ("H1", "L1", "V1"):
        for rate, seconds, kind in ((4096, 32, "hdf5"), (16384, 32, "hdf5"), (4096, 32, "gwf")):
            start = int(gps) - 15
            file = f"{detector[0]}-{detector}_GWOSC_{rate // 1024}KHZ_R1-{start}-{seconds}.{kind}"
            entry = {"GPSstart": start, "detector": detector, "duration": seconds, "format": kind}
            url = f"https://gwosc.org/{place}/{file}"
            strain.append(entry | {"sampling_rate": rate, "url": url})
            if (rate, kind) == (4096, "hdf5") and detector != "V1":
                server.files[f"/gwosc.org/{place}/{file}"] = _strain(folder, detector, start)
    old = {"version": 1, "GPS": 1.0, "strain": []}
    new = {"commonName": name, "version": 3, "GPS": gps, "strain": strain}
    answer = {"events": {f"{name}-v1": old, f"{name}-v3": new}}
    server.files[f"/gwosc.org/eventapi/json/event/{name}"] = json.dumps(answer).encode()


def _strain(folder: Path, detector: str, start: int) -> bytes:
    """Write a file of noise in GWOSC's layout."""
    path = folder / f"{detector}.hdf5"
    noise = np.random.default_rng(ord(detector[0])).normal(0, 1e-21, 32 * 4096)
    with h5py.File(path, "w") as file:
        data = file.create_dataset("strain/Strain", data=noise, compression="gzip")
        data.attrs["Xstart"], data.attrs["Xspacing"] = start, 1 / 4096
        file["meta/Detector"] = detector
        file["meta/GPSstart"] = start
    return path.read_bytes()


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Server]:
    """A loopback server in place of all publishers."""
    monkeypatch.setenv("SECONDHAND_CACHE", str(tmp_path / "cache"))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state.requests.append(self.path)
            body = state.files.get(self.path)
            if body is None:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body[: len(body) // 2] if state.breaks else body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as served:
        thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        monkeypatch.setenv("SECONDHAND_MIRROR", f"http://127.0.0.1:{served.server_address[1]}/")
        yield state
        served.shutdown()
        thread.join(10)


@pytest.fixture
def esc50(server: Server, monkeypatch: pytest.MonkeyPatch) -> bytes:
    content = esc50_zip()
    publish(server, monkeypatch, "esc50", content)
    return content


def place(name: str) -> Path:
    return cache_root() / "sets" / name


def left(name: str) -> list[str]:
    return sorted(path.name for path in place(name).iterdir()) if place(name).exists() else []
