"""Loads a model to predict with, from what its caller gives: a folder or a bundle, and flags as keywords."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence

from datasets.kinds.lookup import Lookup
from learners.inference.options import Computing, Opening, Overrides
from learners.inference.pieces import pieces_for
from learners.inference.predictor import Predictor, bundle_and_run
from learners.model.bundle import Bundle


def load_predictor(
    model: str | os.PathLike[str] | Bundle,
    *,
    threshold: float | Sequence[float | None] | None = None,
    keep_known: float | None = None,
    score: str | None = None,
    only: Collection[str] | None = None,
    top: int = 3,
    device: str = "auto",
    engine: str = "auto",
    tta: bool = True,
    bs: int = 32,
    workers: int | None = None,
    allow_truncated: bool = False,
    recentre: bool = False,
    lookup: Lookup | None = None,
) -> Predictor:
    """The predictor of a model, with the flags of ``learners.predict`` as keywords.

    What fields predict of files (`learners.inference.pieces`) is predicted here, too.

    Parameters
    ----------
    model : a model folder, the name of one elsewhere, or a loaded bundle.
    threshold : least probability of an accepted class, in [0, 1], or one per class; default: the model's.
        0 accepts everything.
    keep_known : fraction of known files that the score lets pass, 0.5 to 1; default: the model's.
    score : out-of-distribution score; default: the model's.
    only : class subset: the classes of the model that may be predicted.
    top : number of classes to list.
    device : "auto", "cpu", "cuda", "cuda:N" or "mps".
    engine : "torch", "onnx" (ONNX Runtime on the CPU) or "auto": onnx on a CPU if the model folder has ``model.onnx``.
    tta : use the model's test-time augmentation, as its calibration did.
    bs : items per forward pass.
    workers : processes that open files; default: one per core.
    allow_truncated : predict what is there of recordings and photos that were cut off; otherwise they are bad files.
    recentre : judge strain where its energy lies, if that is not at the moment that was asked for.
    lookup : for a model whose inputs are looked up, those of the items.

    Raises
    ------
    SecondhandError : there is no such model, a value is out of range, or the model cannot have such a rule.
    """
    computing = Computing(bs=bs, device=device, engine=engine, tta=tta)
    overrides = Overrides(
        threshold=threshold,
        keep_known=keep_known,
        score=score,
        only=None if only is None else tuple(only),
    )
    bundle, run = bundle_and_run(model)
    predictor = Predictor(
        bundle,
        rule=overrides.rule(bundle),
        pieces=pieces_for(bundle),
        top=top,
        lookup=lookup,
        opening=Opening(workers=workers, allow_truncated=allow_truncated, recentre=recentre),
        computing=computing,
    )
    predictor.run = run
    return predictor
