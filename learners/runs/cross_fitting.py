"""Cross-fitting in a run: the head learns from all files, and all files that the body has not learnt from measure it.

Those of a test split, of unknown classes and the held-out background stay out. See `learners.training.cross_fit`.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from fastcore.basics import chunked
from numpy.typing import NDArray
from torch import nn

from datasets.core import progress
from datasets.core.errors import counted
from datasets.core.files import write_beside
from datasets.core.part import parts_of
from datasets.items import describe
from datasets.items.columns import is_rehearsed
from datasets.items.facts import Inputs, Later, Protocol, Unsplit
from datasets.items.items import Items
from datasets.items.labels import UNKNOWN
from datasets.items.splits import are_named, split_units
from datasets.kinds.views import PLAIN
from datasets.steps.earlier import CROSS_FITTED
from learners.backbones.building import members_of
from learners.cli.result import TAUGHT_BODY
from learners.evaluation.held_out import (
    Evaluation,
    Measured,
    as_predicted,
    outputs_of_rows,
    predict_held_out,
)
from learners.inference.inputs import HeadInputs
from learners.inference.options import Computing, Opening
from learners.inference.passed import Passed
from learners.inference.predictor import TOGETHER, Output, Predictor
from learners.rule.base import AnyRule
from learners.rule.folds import Folds
from learners.rule.numbers.arrays import Outputs
from learners.runs.run import CrossFit, Prepared, Run
from learners.training.cross_fit import IN_ALL, MOST, Heads, assign_folds, fit_heads, starts_anew
from learners.training.features import outputs_by_part, split_network
from learners.training.keep import Kept
from learners.training.probe import ByPart, LinearProbe, last_layer

log = logging.getLogger(__name__)

#: Splits whose files teach and measure.
LEARNT = ("train", "valid", "calibration")
#: Name of the measured files' split in the predictions.
MEASURED = "calibration"


def may_cross_fit(run: Prepared) -> bool:
    """Whether the head is to learn from all files: the run has drawn its splits itself, and its files are few."""
    splits, train, items = run.settings.splits, run.settings.train, run.items
    unsplit = items.table.fact(Unsplit).frame
    own_splits = unsplit["split"][~is_rehearsed(unsplit)].isin(["valid", "calibration"]).any()
    later = items.table.get(Later) is not None
    named = own_splits or later or (splits.fold is not None and splits.cv is None)
    return bool(
        train.freeze_epochs == "fit"
        and (run.origin is None or starts_anew(run.origin, items.table))
        and not named
        and not _divides_files(items.table.frame)
        and len(items.rows) <= MOST
    )


def _divides_files(frame: pd.DataFrame) -> bool:
    """Whether the items of a file may be in several folds, as those of a single recording are."""
    return bool(frame.groupby("path")["group"].nunique().gt(1).any())


def _new_to_bodies(run: Run, rows: pd.DataFrame, kept: Sequence[Kept]) -> NDArray[np.bool_]:
    """Whether none of the bodies of the kept weights has learnt from each row."""
    learnt = rows["split"].eq("train").to_numpy()
    if any(one.phase != "frozen" for one in kept):
        return ~learnt
    if run.origin is not None and run.origin.metrics.get(TAUGHT_BODY):
        return ~(learnt & is_rehearsed(rows).to_numpy())
    return np.ones(len(rows), bool)


def cross_fit(run: Run, kept: Sequence[Kept], features: ByPart) -> Run:
    """The run with its head fitted to all files, and a head for each fold; the same run where that measures no more
    files than its calibration split. Of an ensemble each member has such heads, with the same folds.

    The head of a trained body is fitted from the trained one, which changes only where the files contradict it.

    Parameters
    ----------
    kept : facts on the weights of each network of the run.
    features : those of the body, as far as they are known.
    """
    members, items = members_of(run.bundle.network), run.items
    layers = [layer for layer in map(last_layer, members) if layer is not None]
    rows = items.rows
    known = rows["label"].ne(UNKNOWN)
    learnt = rows["split"].eq("train") | (known & rows["split"].isin(LEARNT))
    rows = rows.loc[learnt]
    inputs = _inputs_predictor(run, members, features, rows)
    width = layers[0].in_features
    found = [_of_first_view(one, len(layers) * width) for one in inputs.raw(parts_of(rows))]
    if len(found) != len(rows):  # a row that is cut into pieces has no features of its own
        return run
    good = np.array([x is not None for x, _ in found], bool)
    rows = rows.loc[good]
    targets = run.task.encode(rows["label"].tolist(), items.labels)
    units = split_units(rows).to_numpy(np.int64)
    new = _new_to_bodies(run, rows, kept)
    folds = assign_folds(targets, units, run.settings.train.seed, new)
    by_key = dict(zip(_keys(rows), folds.tolist(), strict=True))
    frame = items.table.frame
    taught = frame["split"].isin(LEARNT)
    of_items = np.array([by_key.get(key, IN_ALL) for key in _keys(frame)], np.int64)
    of_items[~taught] = IN_ALL
    folds[~np.isin(folds, of_items)] = IN_ALL  # a fold of the background alone measures nothing
    if (of_items != IN_ALL).sum() <= frame["split"].eq(MEASURED).sum():
        return run
    x = torch.from_numpy(np.stack([x for x, _ in found if x is not None]))
    pooled = np.stack([of_body for _, of_body in found if of_body is not None])
    in_an_epoch = rows.drop_duplicates("place") if "place" in rows else rows
    counts, known = in_an_epoch["label"].value_counts(), rows["label"].ne(UNKNOWN)
    background = items.has_background
    objective = run.task.objective(
        run.settings.train,
        [int(counts.get(name, 0)) for name in items.labels],
        background=background,
        places=known.sum() / in_an_epoch["label"].ne(UNKNOWN).sum(),
    )
    heads = list[Heads]()
    for layer, one, of_member in zip(layers, kept, x.split(width, dim=1), strict=True):
        probe = partial(objective.probe, device=torch.device(inputs.device))
        if one.phase != "frozen":
            probe = partial(probe, start=_with_background(layer, len(items.labels)))
        y = torch.from_numpy(targets)
        heads.append(fit_heads(probe, of_member, y, len(items.labels), folds, units))
    with torch.no_grad():
        for layer, head in zip(layers, heads, strict=True):
            weight, bias = _without_background(head.all, background)
            layer.weight.copy_(weight)
            layer.bias.copy_(bias)
    predictors = {
        number: inputs.behind(*_stacked([head.without[number] for head in heads], background))
        for number in heads[0].without
    }
    model = inputs.behind(*_stacked([head.all for head in heads], background))
    assert model.passed is not None
    through = [model.passed.get(block)[0] for block in chunked(parts_of(rows), TOGETHER)]
    logits = np.concatenate(through)
    passed = Passed(run.folder)
    passed.put(parts_of(rows), logits, pooled)
    of_known = known.to_numpy()
    cross = CrossFit(
        of_items,
        predictors,
        Outputs(logits[of_known].astype(np.float64), None, pooled[of_known], units[of_known]),
        rows["label"][of_known].tolist(),
        folds[of_known],
        taught_body=not new.all(),
    )
    table = replace(items.table, frame=_all_train(frame))
    table = table.knowing(Protocol(protocol(table, cross)))
    log.debug(
        "Cross-fitting: the head is fitted to %d files; each of %d is measured by one of %d heads that have not seen it",
        taught.sum(), (of_items != IN_ALL).sum(), len(predictors),
    )  # fmt: skip
    facts = {"folds": len(predictors), "body": cross.taught_body}
    write_beside(run.folder / CROSS_FITTED, json.dumps(facts).encode())
    return replace(
        run,
        items=items._replace(table=table, rows=_all_train(items.rows, learnt)),
        predictor=run.predictor.behind_passed(passed),
        cross=cross,
    )


def measured_of(run: Run, cross: CrossFit) -> Measured:
    """Outputs of all measured items, each of the head that has not seen it."""
    table = run.items.table
    outputs, truths, paths = list[Outputs](), list[str](), list[str]()
    folds, first = list[int](), 0
    with progress.step("Calibrating"):
        for number, predictor in cross.predictors.items():
            rows = as_predicted(predictor, table.frame.loc[cross.folds == number])
            of_fold, names, files = outputs_of_rows(predictor, rows)
            assert of_fold.groups is not None
            if not len(of_fold):  # all of its files have disappeared
                continue
            outputs.append(replace(of_fold, groups=of_fold.groups + first))
            first += int(of_fold.groups.max(initial=-1)) + 1
            truths += names
            paths += files
            folds += [number] * len(names)
    items = Outputs(
        np.concatenate([one.logits for one in outputs]),
        None,
        np.concatenate([one.features for one in outputs if one.features is not None]),
        np.concatenate([one.groups for one in outputs if one.groups is not None]),
    )
    return Measured(
        items,
        cross.reference,
        truths,
        paths,
        cross.truths,
        background=bool(run.items.rows["label"].eq(UNKNOWN).any()),
        table=table,
        folds=Folds(np.array(folds, np.int64), cross.of_reference, {**cross.distances}),
    )


def under(run: Run, cross: CrossFit, rule: AnyRule, folds: Folds) -> CrossFit:
    """The folds under a rule that is fitted to ``folds``, each with the distances to the training items outside it."""
    labels = run.task.encode(cross.truths, run.bundle.classes)
    predictors = {
        number: predictor.under(outside(rule, folds, number, labels))
        for number, predictor in cross.predictors.items()
    }
    return replace(cross, predictors=predictors)


def outside(rule: AnyRule, folds: Folds, fold: int, labels: NDArray[Any]) -> AnyRule:
    """The rule with the distances to the training items outside a fold; ``labels`` are those of all of them, which a
    distance to classes needs.
    """
    if rule.distance.knn is None:
        return rule
    return replace(rule, distance=rule.distance.outside(folds, fold, labels))


def predict_cross(run: Run, cross: CrossFit) -> Evaluation:
    """Predictions for all measured items, each by the head that has not seen it, and for all held-out items; windows of the
    background by the head that has not seen their recording.
    """
    table, background = run.items.table, _held_out_background(run.items.table)
    fold_of = dict(zip(table.frame["path"], cross.folds.tolist(), strict=True))
    of_background = background["path"].map(fold_of).fillna(IN_ALL).to_numpy(np.int64)
    parts, numbers, folds = list[Evaluation](), list[NDArray[np.int64]](), list[NDArray[Any]]()
    kept = np.flatnonzero(table.frame["split"].ne("train"))
    others, first = np.flatnonzero(of_background == IN_ALL), len(table.frame)
    unknown = first + len(background) + np.arange(len(table.unknown_items))
    if len(kept) or len(others) or len(unknown):
        held_out = replace(table, background=background.iloc[others])
        parts.append(predict_held_out(run.predictor, held_out))
        numbers.append(np.concatenate([kept, first + others, unknown]))
        folds.append(np.full(len(numbers[-1]), IN_ALL))
    for number, predictor in cross.predictors.items():
        own, beside = np.flatnonzero(cross.folds == number), np.flatnonzero(of_background == number)
        alone = replace(
            table,
            frame=table.frame.iloc[own].assign(split=MEASURED),
            background=background.iloc[beside],
            unknown_items=table.unknown_items.iloc[:0],
        )
        parts.append(predict_held_out(predictor, alone))
        numbers.append(np.concatenate([own, first + beside]))
        folds.append(np.full(len(numbers[-1]), number))
    units, frames = 0, []
    for part in parts:
        frames.append(part.predictions.assign(unit=part.predictions["unit"] + units))
        units += int(part.predictions["unit"].max()) + 1
    order = np.argsort(np.concatenate(numbers), kind="stable")
    width = max(part.logits.shape[1] for part in parts)
    deep = max(part.features.shape[1] for part in parts)
    return Evaluation(
        pd.concat(frames, ignore_index=True).iloc[order].reset_index(drop=True),
        np.concatenate([_wide(part.logits, width) for part in parts])[order],
        np.concatenate([_wide(part.features, deep) for part in parts])[order],
        folds=np.concatenate(folds)[order],
        rules={number: predictor.rule for number, predictor in cross.predictors.items()},
        of_reference=cross.of_reference,
        by_body=cross.by_body,
    )


def of_path(table: Items, cross: CrossFit) -> dict[str, Predictor]:
    """The predictor of each measured file, which has not seen it."""
    numbers = zip(table.frame["path"], cross.folds.tolist(), strict=True)
    return {path: cross.predictors[number] for path, number in numbers if number != IN_ALL}


def as_measured(frame: pd.DataFrame, cross: CrossFit) -> pd.DataFrame:
    """The item table with its measured items in the split of their predictions."""
    return frame.assign(split=frame["split"].mask(cross.measured, MEASURED))


def protocol(table: Items, cross: CrossFit) -> str:
    """What the figures of a cross-fitted run rest on, as a clause."""
    frame, heads = table.frame, len(cross.predictors)
    measured = counted(int((cross.folds != IN_ALL).sum()), "file")
    if frame["split"].eq("test").any():
        return table.fact(Protocol).text
    named = frame["group"].loc[are_named(frame["group"])]
    together = (
        f"; each of {named.nunique()} groups stays together" if describe.group_count(table) else ""
    )
    if cross.taught_body:
        measured += " that the body has not learnt from"
    judges = "bodies" if cross.by_body else "heads"
    text = f"{measured}, each by one of {heads} {judges} that had not seen it{together}"
    return describe.random_protocol(table, text, by_group=True)


def _inputs_predictor(
    run: Run, members: Sequence[nn.Sequential], features: ByPart, rows: pd.DataFrame
) -> Predictor:
    """A predictor whose logits are the inputs of the heads' last layers."""
    inputs = HeadInputs([_without_layer(member) for member in members], run.tta_views).eval()
    predictor = Predictor(
        replace(run.bundle, built=inputs, tta_views=(PLAIN,)),
        lookup=run.items.table.fact(Inputs).lookup,
        passed=Passed(run.folder),
        opening=Opening(decoded=run.decoded),
        computing=Computing(bs=run.settings.train.bs, device=run.settings.speed.device),
    )
    assert predictor.passed is not None
    if len(members) == len(run.tta_views) == 1:
        for outputs in outputs_by_part(inputs.networks[0], features, parts_of(rows)):
            predictor.passed.put(*outputs)
    return predictor


def _of_first_view(output: Output, width: int) -> tuple[Any, Any]:
    """Copies of the inputs of the layers, [width], for the first view, which is the plain one, and of the features."""
    if output.logits is None or output.features is None:
        return None, None
    return output.logits[:width].copy(), output.features.copy()


def _without_layer(network: nn.Sequential) -> nn.Sequential:
    """The network without the linear layer of its head, the only one with weights."""
    passive = [*split_network(network)[0].children()][1:] or [nn.Identity()]
    return nn.Sequential(network[0], nn.Sequential(*passive))


def _without_background(head: LinearProbe, background: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a head; relative to those of the background class, the last one, if there is one."""
    weight, bias = head.weight, head.bias
    return (weight[:-1] - weight[-1:], bias[:-1] - bias[-1:]) if background else (weight, bias)


def _with_background(layer: nn.Linear, classes: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight and bias of a layer, with those of the background class, if that makes one class more: all others are
    relative to them.
    """
    weight, bias = layer.weight.detach(), layer.bias.detach()
    more = classes - len(bias)
    return torch.nn.functional.pad(weight, (0, 0, 0, more)), torch.nn.functional.pad(
        bias, (0, more)
    )


def _stacked(heads: Sequence[LinearProbe], background: bool) -> tuple[Any, Any]:
    """Weights [members, classes, width] and biases [members, classes] of the heads of the members."""
    layers = [_without_background(head, background) for head in heads]
    weights, biases = (torch.stack(values).numpy() for values in zip(*layers, strict=True))
    return weights, biases


def _keys(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """What rows of one unit have in common with the items that they show: file and group."""
    return [*zip(rows["path"], rows["group"].astype(str), strict=True)]


def _all_train(frame: pd.DataFrame, learnt: pd.Series | None = None) -> pd.DataFrame:
    """The rows with all that teach in the training split."""
    teaches = frame["split"].isin(LEARNT) if learnt is None else learnt
    return frame.assign(split=frame["split"].mask(teaches, "train"))


def _held_out_background(table: Items) -> pd.DataFrame:
    """The rows of the background that nothing has learnt."""
    return table.background.loc[table.background["split"].ne("train")]


def _wide(values: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """The values, or NaN where no item of a part has any."""
    if values.shape[1] == width:
        return values
    return np.full((len(values), width), np.nan, np.float32)
