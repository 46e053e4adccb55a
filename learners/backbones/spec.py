"""The specification of a network; it can be read from a model folder without importing torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from datasets.core.errors import SecondhandError, quoted
from learners.cli.settings import MAX_MEMBERS

HEADS = ("stages", "linear", "cosine")
#: The speech embedding of `learners.backbones.packaged`.
SPEECH = "embedded/speech"
#: Arguments of `MelSettings` for the spectrograms that the speech embedding was trained on: 10 ms a
#: frame, 32 bands. Recordings longer than the window are predicted in windows.
SPEECH_MEL: dict[str, Any] = {
    "rate": 16_000, "window": 1.5, "n_fft": 512, "hop": 160, "n_mels": 32, "fmin": 60.0, "fmax": 3800.0,
    "level": "clip", "range_db": 80.0, "size": (32, 151),
}  # fmt: skip


#: Before the name of a foreign network whose embeddings are the input; the body then passes them on.
EMBEDDING = "embedding/"


@dataclass(frozen=True)
class NetworkSpec:
    """Everything needed to build a network, except its weights.

    Parameters
    ----------
    backbone : "embedded", a timm name, "hf-hub:USER/NAME", "local-dir:PATH",
        "torchvision/NAME[:WEIGHTS]", "scratch/NAME" or "embedding/NAME" (embeddings of a foreign network). A timm name may say how a transformer pools,
        as in ``vit_tiny_patch16_224?global_pool=avg``.
    n_classes : length of the logits.
    size : side of the square input in pixels; of embeddings their width.
    head : "linear" (dropout and a linear layer), "stages" (the same on the features of all stages, see
        `bodies.Stages`) or "cosine" (`backbones.Cosine` of the pooled features); "auto" is stages where
        the body has them, else linear.
    dropout : dropout before the last layer, in [0, 1).
    members : number of networks of a `backbones.Ensemble`, 1 to 16.
    width : width of an input that is ``size`` x ``width`` pixels; None for a square.
    many : of several labels an item, each logit by itself: members and views are averaged so.
    """

    backbone: str
    n_classes: int
    size: int = 224
    head: str = "auto"
    dropout: float = 0.2
    members: int = 1
    width: int | None = None
    multi_label: bool = False

    def __post_init__(self) -> None:
        problems = []
        if type(self.backbone) is not str or len(self.backbone) > 200:
            problems.append(f"backbone {quoted(self.backbone)} is not a name")
        for name, low, high in (
            ("n_classes", 2, 100_000),
            ("size", 1, 65_536) if self.embeddings_of else ("size", 8, 2048),
            ("members", 1, MAX_MEMBERS),
            ("width", 8, 4096),
        ):
            value = getattr(self, name)
            if name == "width" and value is None:
                continue
            if type(value) is not int or not low <= value <= high:
                problems.append(
                    f"{name} {quoted(value)} is not a whole number from {low} to {high}"
                )
        if self.multi_label not in (True, False):
            problems.append(f"multi_label {quoted(self.multi_label)} is not true or false")
        if type(self.head) is not str or self.head not in ("auto", *HEADS):
            problems.append(f"head {quoted(self.head)} is none of auto, {', '.join(HEADS)}")
        if type(self.dropout) not in (int, float) or not 0 <= self.dropout < 1:
            problems.append(f"dropout {quoted(self.dropout)} is not in [0, 1)")
        if problems:
            raise SecondhandError("network: " + "; ".join(problems))

    @property
    def embeddings_of(self) -> str:
        """The foreign network whose embeddings are the input; "" if the input is a picture."""
        name = str(self.backbone)
        return name.removeprefix(EMBEDDING) if name.startswith(EMBEDDING) else ""

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of an input: [3, height, width], or [width] of an embedding."""
        return (self.size,) if self.embeddings_of else (3, *self.shape)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width of the input in pixels."""
        return self.size, self.width or self.size

    def to_dict(self) -> dict[str, Any]:
        """The specification as JSON values, without those that are None or False."""
        values = asdict(self).items()
        return {name: value for name, value in values if value is not None and value is not False}
