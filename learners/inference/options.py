"""What a call changes of how a model predicts: its rule, how files are opened, and how the network is computed.

Nothing heavy is imported, so that settings of the commands may name these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from datasets.core.errors import SecondhandError

if TYPE_CHECKING:
    from datasets.images.decoded import DecodedPictures
    from learners.model.bundle import Bundle
    from learners.rule.base import AnyRule


@dataclass(frozen=True, kw_only=True)
class Overrides:
    """What replaces parts of a model's rule; None leaves each as it is.

    Attributes
    ----------
    threshold : least probability of an accepted class, in [0, 1], or one per class. 0 accepts everything.
    keep_known : fraction of known files that the score lets pass, 0.5 to 1.
    score : out-of-distribution score, of those that the model stores.
    only : class subset: the classes of the model that may be predicted.
    """

    threshold: float | Sequence[float | None] | None = None
    keep_known: float | None = None
    score: str | None = None
    only: tuple[str, ...] | None = None

    def rule(self, model: Bundle) -> AnyRule:
        """The rule of a model with these overrides.

        Raises
        ------
        SecondhandError : a value is out of range, or the model cannot have such a rule.
        """
        classes = None if self.only is None else [name in self.only for name in model.classes]
        return model.rule.but(
            threshold=self.threshold, keep_known=self.keep_known, score=self.score, classes=classes
        )


@dataclass(frozen=True, kw_only=True)
class Opening:
    """How files are opened.

    Attributes
    ----------
    workers : processes that open files; default: one per core.
    decoded : cache of decoded pixels, shared by the stages of a run.
    allow_truncated : predict what is there of recordings and photos that were cut off; otherwise they are bad files.
    recentre : judge strain where its energy lies, if that is not at the moment that was asked for.
    """

    workers: int | None = None
    decoded: DecodedPictures | None = None
    allow_truncated: bool = False
    recentre: bool = False


@dataclass(frozen=True, kw_only=True)
class Computing:
    """How the network is computed.

    Attributes
    ----------
    bs : items per forward pass.
    device : "auto", "cpu", "cuda", "cuda:N" or "mps".
    engine : "torch", "onnx" (ONNX Runtime on the CPU) or "auto", see `engine.pick_engine`.
    tta : use the model's test-time augmentation, as its calibration did.

    Raises
    ------
    SecondhandError : ``bs`` is less than 1.
    """

    bs: int = 32
    device: str = "auto"
    engine: str = "auto"
    tta: bool = True

    def __post_init__(self) -> None:
        if self.bs < 1:
            raise SecondhandError(f"--bs {self.bs}: expected at least 1")


@dataclass(frozen=True, kw_only=True)
class Options:
    """All that a call of ``learners.predict`` changes; it can be sent to other machines.

    ``top`` : number of classes to list.
    """

    top: int = 3
    overrides: Overrides = field(default_factory=Overrides)
    opening: Opening = field(default_factory=Opening)
    computing: Computing = field(default_factory=Computing)
