"""usage: secondhand adapt MODEL PATH... --out FOLDER [flags]

Fit a model to files of another place without a label: another microphone, lens or season. Writes a copy of the model
that takes the mean and the spread of what the network sees there to those of its training files, as far as similar
files then agree more often about their class; where they do not, it writes nothing. Afterwards estimate how good the
copy is there: secondhand audit. Exit status: 0; 3 if some files could not be used (they are listed); 2 for a wrong
call.

examples:
  secondhand adapt runs/birds/model ridge/ --out ridge-model/
  secondhand adapt runs/photos/model 'shop/*.jpg' --out shop-model/
  secondhand adapt hf:USER/NAME new/ --like old/ --out new-model/
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import MISSING, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from datasets.cli.options import option, positional
from datasets.core.errors import BadFile, Rejected, SecondhandError, counted
from learners.cli import console
from learners.cli.commands import ComputeSettings, model_help, paths_help
from learners.cli.flags import read_call
from learners.rule.scores.base import BLOCK, normalise

if TYPE_CHECKING:
    from datasets.core.part import FileOrPart, Part
    from learners.backbones.building import Network
    from learners.inference.predictor import Predictor
    from learners.model.bundle import Bundle
    from learners.rule.decisions import Decisions

Floats = NDArray[np.float64]

#: How far the mean and the spread are taken from those of the training to those of the site.
STEPS = (0.25, 0.5, 0.75, 1.0)
#: Neighbours that a file is compared with.
NEIGHBOURS = 5
#: A step counts if its gain in agreement is so many standard errors above 0.
SURE = 3.5
#: Files, or stretches of recordings, that are needed.
LEAST = 20
#: Length of a stretch in seconds. Windows of one are not compared with each other, and count as one.
STRETCH = 30.0
#: Most files or windows of the site that are looked at, and of the training.
MOST, MOST_LIKE = 5000, 1000
#: The part of the mean variance that is added to each, so that features that hardly vary are not blown up.
FLOOR = 0.25


@dataclass(kw_only=True)
class AdaptSettings(ComputeSettings):
    """adapt"""

    model: str = positional(model_help)
    paths: list[str] = positional(paths_help)
    out: Path = option(MISSING, "Folder for the adapted copy of the model.", metavar="FOLDER")
    like: list[str] | None = option(
        None,
        "Files like those of the training, without labels. Default: those of the model's run.",
        metavar="PATH",
    )
    overwrite: bool = option(False, "Replace the model folder at --out.")
    #: ONNX Runtime has only the outputs of a network, and not what its last layer sees.
    engine: ClassVar[str] = "torch"


class Moments(NamedTuple):
    """Mean and variance of features, [width] each."""

    mean: Floats
    variance: Floats

    @classmethod
    def of(cls, features: NDArray[np.floating]) -> Moments:
        x = np.asarray(features, np.float64)
        return cls(x.mean(axis=0), x.var(axis=0))


class Shift(NamedTuple):
    """What takes features to ``scale * features + offset``, [width] each."""

    scale: Floats
    offset: Floats

    @classmethod
    def between(cls, source: Moments, site: Moments, step: float) -> Shift:
        """Takes the moments of the site to those of the source, a ``step`` of the way (arXiv:1603.04779; blended as in
        2006.16971).
        """
        mean = (1 - step) * source.mean + step * site.mean
        variance = (1 - step) * source.variance + step * site.variance
        floor = FLOOR * source.variance.mean()
        scale = np.sqrt((source.variance + floor) / np.maximum(variance + floor, 1e-12))
        return cls(scale, source.mean - mean * scale)


@dataclass
class Seen:
    """The n files or windows that the network has seen.

    Attributes
    ----------
    inputs : of the last layers of the heads, float32 [n, members * width].
    features : those of the distance, float32 [n, d].
    unit : number of the file or stretch of each, [n].
    files : number of readable files.
    rejected : bad files.
    """

    inputs: NDArray[np.float32]
    features: NDArray[np.float32]
    unit: NDArray[np.int64]
    files: int
    rejected: list[Rejected]

    @property
    def units(self) -> int:
        """Number of files and stretches."""
        return len(np.unique(self.unit))

    @property
    def counted(self) -> str:
        """How many there are, in words."""
        n, files = len(self.inputs), counted(self.files, "file")
        return files if n == self.files else f"{counted(n, 'window')} of {files}"


class Step(NamedTuple):
    """How far to go, and the agreement of similar files or windows before and after it, above chance."""

    step: float
    before: float
    after: float


class Head:
    """The last linear layers of the heads of a model, and its rule."""

    def __init__(self, bundle: Bundle) -> None:
        from learners.backbones.building import members_of
        from learners.training.probe import last_layer

        layers = [last_layer(member) for member in members_of(bundle.network)]
        self._layers = [layer for layer in layers if layer is not None]
        self.bundle, self.rule = bundle, bundle.rule
        weights = [layer.weight.detach().cpu().numpy() for layer in self._layers]
        biases = [layer.bias.detach().cpu().numpy() for layer in self._layers]
        self._weight, self._bias = np.stack(weights), np.stack(biases)

    def logits(self, inputs: NDArray[np.float32], shift: Shift | None = None) -> Floats:
        """Logits [n, classes] of the inputs of the layers, [n, members * width], behind a shift."""
        x = inputs if shift is None else inputs * shift.scale + shift.offset
        members, _, width = self._weight.shape
        of_members = np.asarray(x, np.float64).reshape(len(x), members, width).swapaxes(0, 1)
        logits = of_members @ self._weight.swapaxes(1, 2) + self._bias[:, None]
        return np.asarray(logits[0] if members == 1 else self.bundle.spec.average.arrays(logits))

    def probabilities(self, seen: Seen, shift: Shift | None = None) -> Floats:
        """Calibrated probabilities, [n, classes], with the rest, that of the background, as one class more."""
        values = self.rule.probabilities(self.logits(seen.inputs, shift))
        return np.hstack([values, np.clip(1 - values.sum(axis=1, keepdims=True), 0, None)])

    def decide(self, seen: Seen, shift: Shift | None = None) -> Decisions:
        """What the rule decides on each file or window. The distance is that of the unshifted features."""
        return self.rule.decide(self.logits(seen.inputs, shift), seen.features)

    def shifted(self, shift: Shift) -> Network:
        """The network with the shift in the weights of its last layers; the body is as it was."""
        import torch

        from learners.backbones.building import members_of
        from learners.training.probe import last_layer

        network = deepcopy(self.bundle.network)
        width = self._weight.shape[2]
        for number, member in enumerate(members_of(network)):
            layer, of_member = last_layer(member), slice(number * width, (number + 1) * width)
            assert layer is not None
            weight = self._weight[number].astype(np.float64)
            bias = self._bias[number] + weight @ shift.offset[of_member]
            with torch.no_grad():
                layer.weight.copy_(torch.from_numpy(weight * shift.scale[of_member]))
                layer.bias.copy_(torch.from_numpy(bias))
        return network


def best_step(head: Head, source: Moments, site: Seen) -> Step | None:
    """How far to take the moments of a site to those of the source: where similar files or windows agree most about their
    class, as the neighbours of a good model do (arXiv:2108.10860). None where no step is surely better than none.

    Agreement is p · (mean p of the neighbours - mean p of all), with the probabilities p of the classes. A shift that
    removes the mixture of the classes, and not what sets the site apart, gives neighbours different classes and loses
    agreement; one that gives all the same class gains none.
    """
    near, mine = neighbours(site), Moments.of(site.inputs)

    def by_unit(shift: Shift | None) -> Floats:
        p = head.probabilities(site, shift)
        agreement = (p * (p[near].mean(axis=1) - p.mean(axis=0))).sum(axis=1)
        _, number = np.unique(site.unit, return_inverse=True)
        return np.asarray(np.bincount(number, agreement) / np.bincount(number))

    before = by_unit(None)
    best: Step | None = None
    for step in STEPS:
        after = by_unit(Shift.between(source, mine, step))
        gain = after - before
        sure = gain.mean() > SURE * gain.std(ddof=1) / math.sqrt(len(gain))
        if sure and (best is None or after.mean() > best.after):
            best = Step(step, float(before.mean()), float(after.mean()))
    return best


def neighbours(seen: Seen) -> NDArray[np.int64]:
    """Numbers of the `NEIGHBOURS` most similar files or windows of other units, [n, neighbours]."""
    mean, variance = Moments.of(seen.inputs)
    scale = np.sqrt(np.maximum(variance + FLOOR * variance.mean(), 1e-12))
    x = normalise(((seen.inputs - mean) / scale).astype(np.float32))
    found = []
    for first in range(0, len(x), BLOCK):
        rows = slice(first, first + BLOCK)
        cosines = x[rows] @ x.T
        cosines[seen.unit[rows, None] == seen.unit] = -2
        found.append(np.argpartition(-cosines, NEIGHBOURS, axis=1)[:, :NEIGHBOURS])
    return np.concatenate(found)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 3 if some files could not be used."""
    settings = read_call(AdaptSettings, argv, __doc__)
    console.start(settings)
    from datasets.kinds.finding import some_files
    from learners.files.lock import check_replaceable
    from learners.model.bundle import load_bundle
    from learners.model.places import model_folder

    check_replaceable(settings.out, overwrite=settings.overwrite, mark="config.json")
    model = model_folder(settings.model)
    if settings.out.resolve() == model.resolve():
        raise SecondhandError(f"--out {settings.out} is the model itself. Name another folder")
    bundle = load_bundle(model)
    check_adaptable(bundle, settings.model)
    predictor, skipped = inputs_predictor(bundle, settings), Counter[str]()
    files = list(some_files(settings.paths, predictor.kind, skipped))
    like: Sequence[FileOrPart] = (
        training_files(model)
        if settings.like is None
        else list(some_files(settings.like, predictor.kind, Counter()))
    )
    site = look(predictor, files, MOST)
    status = console.tell_left_out(site.rejected, len(files), skipped)
    named = ", ".join(settings.paths)[:500]
    if site.units < LEAST:
        raise SecondhandError(
            f"{named}: too few, {site.counted}. {LEAST} files, or {LEAST} stretches of {STRETCH:g} s of recordings, are "
            "needed to adapt a model. Give more files of this place, or label some: secondhand suggest"
        )
    source = look(predictor, like, MOST_LIKE)
    predictor.close()
    if not source.units:
        reason = f" ({source.rejected[0]})" if source.rejected else ""
        raise SecondhandError(
            f"none of the files that {settings.model} was trained on can be read{reason}. Give files like them: --like PATH"
        )
    head = Head(bundle)
    best = best_step(head, Moments.of(source.inputs), site)
    if best is None:
        print(
            f"Nothing is written. {site.counted} of {named} show no difference to the training files that their mean and "
            "spread explain: similar ones do not agree more often about their class without it. If answers are few or "
            f"wrong, label some: {console.command_line('suggest', settings.model)} {named}"
        )
        return status
    shift = Shift.between(Moments.of(source.inputs), Moments.of(site.inputs), best.step)
    before, after = head.decide(site), head.decide(site, shift)
    write_adapted(bundle, model, settings.out, head, shift, f"{site.counted} of {named}", best.step)
    changed = int((before.best != after.best).sum())
    print(
        f"Adapted to       {site.counted} of {named}, {100 * best.step:.0f} % of the way\n"
        f"Agreement        of similar ones about their class, above chance: {best.before:.2f} before, {best.after:.2f} now\n"
        f"It answered      {answers(before, bundle.classes)}\n"
        f"Now it answers   {answers(after, bundle.classes)}\n"
        f"Best guess       another one for {changed} of {len(before)}{changes(before, after, bundle.classes)}\n"
        "How many answers are right here is not known without labels: the model's figures were measured on files of its "
        "training, and the copy has none.\n"
        f"Adapted model:   {settings.out}\n"
        f"Estimate it:     {console.command_line('audit', settings.out)} {named}"
    )
    return status


def check_adaptable(bundle: Bundle, model: str) -> None:
    """Raise SecondhandError if a model cannot be adapted; ``model`` is how the call names it."""
    from learners.backbones.building import members_of
    from learners.model.parts import boxes_alone
    from learners.training.probe import last_layer

    if not bundle.spec.takes_pixels:
        raise SecondhandError(
            f"{model} takes the embeddings of another network, and cannot be adapted"
        )
    if not bundle.rule.exclusive:
        raise SecondhandError(
            f"{model} predicts several labels. Only a model of one label can be adapted"
        )
    if boxes_alone(bundle):
        raise SecondhandError(
            f"{model} was trained on boxes of photos. Only a model of whole files can be adapted"
        )
    if any(last_layer(member) is None for member in members_of(bundle.network)):
        raise SecondhandError(
            f"{model} has a head that is not linear. Train it with --head linear to adapt it"
        )
    terms = bundle.rule.terms
    if math.isfinite(terms.threshold.guaranteed):
        raise SecondhandError(
            f"{model} guarantees an accuracy of {terms.threshold.guaranteed:.3g} on files of its training, which an adapted "
            f"copy would not. Write a copy without first: {console.command_line('adjust', model)} --threshold 0.95 --out FOLDER"
        )


def training_files(model: Path) -> list[Part]:
    """The files of known classes of the run of a model folder, RUN/model: each whole, or at its moments.

    Raises
    ------
    SecondhandError : the run is not there, or does not list its files.
    """
    from datasets.core.part import parts_of
    from datasets.tables.cells import read_frame

    items = model.parent / "items.csv"
    try:
        rows = read_frame(items)
        known = rows[rows["split"] != "unknown"] if "split" in rows else rows
        parts = parts_of(known)
    except (ValueError, TypeError, KeyError, OSError) as error:
        raise SecondhandError(
            f"{items}: the list of the files that {model} was trained on cannot be read ({str(error)[:100]}). Give files "
            "like them: --like PATH"
        ) from None
    return [*dict.fromkeys(part._replace(start=None, end=None) for part in parts)]


def inputs_predictor(bundle: Bundle, settings: ComputeSettings) -> Predictor:
    """A predictor whose logits are the inputs of the last layers of the heads, side by side."""
    from torch import nn

    from datasets.kinds.views import PLAIN
    from learners.backbones.building import members_of
    from learners.inference.inputs import HeadInputs
    from learners.loading.predictor import load_predictor
    from learners.training.probe import last_layer

    def without_layer(network: nn.Sequential) -> nn.Sequential:
        layers = [one for one in network[1].children() if one is not last_layer(network)]
        return nn.Sequential(network[0], nn.Sequential(*(layers or [nn.Identity()])))

    inputs = HeadInputs([without_layer(one) for one in members_of(bundle.network)], (PLAIN,))
    seen = replace(bundle, built=inputs.eval(), tta_views=(PLAIN,), onnx=None)
    return load_predictor(seen, **settings.computing)


def look(predictor: Predictor, files: Sequence[FileOrPart], most: int) -> Seen:
    """What the network sees of files, which come in a random order, the same each time, until there are ``most``."""
    rows: list[tuple[NDArray[np.float32], NDArray[np.float32]]] = []
    units, numbers = list[int](), dict[tuple[int, int], int]()
    readable, rejected = set[int](), list[Rejected]()
    order = np.random.default_rng(0).permutation(len(files))
    for output in predictor.raw(files[number] for number in order):
        piece = output.piece
        if isinstance(piece.refused, BadFile):
            rejected.append(Rejected(piece.file.path, piece.refused.reason))
        if output.logits is None or output.features is None:
            continue
        readable.add(piece.number)
        stretch = int((piece.part.start or 0) // STRETCH)
        units.append(numbers.setdefault((piece.number, stretch), len(numbers)))
        # Copied, because a view would keep those of its whole batch in memory.
        rows.append((output.logits.copy(), output.features.copy()))
        if len(rows) == most:
            break
    if not rows:
        nothing = np.empty((0, 0), np.float32)
        return Seen(nothing, nothing, np.empty(0, np.int64), 0, rejected)
    inputs, features = map(np.stack, zip(*rows, strict=True))
    return Seen(inputs, features, np.array(units), len(readable), rejected)


def write_adapted(
    bundle: Bundle, model: Path, out: Path, head: Head, shift: Shift, adapted_to: str, step: float
) -> None:
    """Write the copy of a model, which says what it was adapted to, and has no figures of its source's files."""
    from learners.inference.exporting import write_network
    from learners.model.bundle import add_onnx, load_bundle, save_with_rule

    today = datetime.now(UTC)
    save_with_rule(
        replace(bundle, built=head.shifted(shift), onnx=None),
        model,
        out,
        bundle.rule,
        metrics={},
        note=f"adapted without labels to {adapted_to}",
        protocol="",
        headline=f"Adapted on {today:%Y-%m-%d} to {adapted_to}, without labels: how many answers are right there was not "
        "measured, and the thresholds are those of the files of the training.",
        adapted={"to": adapted_to, "at": today.isoformat(timespec="seconds"), "step": step},
    )
    if bundle.onnx is not None:
        add_onnx(load_bundle(out), out, write_network)


def answers(decisions: Decisions, classes: Sequence[str]) -> str:
    """How many are answered, and with which classes, in words."""
    given = decisions.label[decisions.label >= 0]
    often = [(classes[k], n) for k, n in Counter(given.tolist()).most_common(5) if k < len(classes)]
    each = ", ".join(f"{name} {n}" for name, n in often)
    return f"{len(given)} of {len(decisions)}{f' ({each})' if each else ''}"


def changes(before: Decisions, after: Decisions, classes: Sequence[str]) -> str:
    """The most common changes of the best guess, in words."""
    pairs = Counter(zip(before.best.tolist(), after.best.tolist(), strict=True))
    other = [(pair, n) for pair, n in pairs.most_common() if pair[0] != pair[1]][:3]
    each = ", ".join(f"{classes[old]} is now {classes[new]} ({n})" for (old, new), n in other)
    return f": {each}" if each else ""


if __name__ == "__main__":
    console.run(main)
