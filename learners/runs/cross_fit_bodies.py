"""Cross-fitting of whole bodies (``--cross-fit K``): every file teaches the model, and every file measures it.

The files are divided into folds. For each fold a network is trained as an ordinary run trains it, with the fold as its
calibration split. The network of the model is trained on all files, and keeps what the middle one of these kept. If that
is the head alone, the body has learnt from no file, and the heads of `learners.runs.cross_fitting` measure instead, each of
which has seen more files.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import numpy as np
import pandas as pd
from fastai.torch_core import set_seed
from numpy.typing import NDArray
from torch import nn

from datasets.core import progress
from datasets.core.errors import SecondhandError, counted, one_line
from datasets.core.files import write_beside
from datasets.core.part import parts_of
from datasets.items.columns import without_empty
from datasets.items.facts import Protocol, Unsplit
from datasets.items.labels import UNKNOWN
from datasets.items.loaded import Loaded
from datasets.items.splits import hold_out, missing_split, split_units
from datasets.steps.earlier import CROSS_FITTED
from datasets.tables.cells import csv_text
from learners.cli.settings import USUAL_BODIES
from learners.evaluation.held_out import REFERENCE_STEP, outputs_of_rows, reference_rows
from learners.inference.predictor import Predictor
from learners.rule.scores.knn import KNN
from learners.rule.scores.rmds import AXES, PER_AXIS, RMDS
from learners.runs.cross_fitting import LEARNT, MEASURED, protocol
from learners.runs.run import CrossFit, Prepared, Run
from learners.training.cross_fit import IN_ALL, MOST, assign_folds
from learners.training.keep import Kept, middle
from learners.training.members import OnImprovement, Trained, Training, train_members
from learners.training.probe import ByPart

log = logging.getLogger(__name__)


class Division(NamedTuple):
    """The division of the files.

    Attributes
    ----------
    of_items : fold of each row of the item table, or `IN_ALL`, which also test items have.
    items : of each fold the items of a run whose calibration split it is.
    """

    of_items: NDArray[np.int64]
    items: dict[int, Loaded]


class Bodies(NamedTuple):
    """The trained networks, by the fold that each has not seen; after Ctrl-C those that there are."""

    folds: Division
    trained: dict[int, Trained]
    interrupted: bool

    @property
    def first(self) -> tuple[Loaded, Trained]:
        """The first network, and the items of its run."""
        fold = min(self.trained)
        trained = self.trained[fold]
        return self.folds.items[fold], trained._replace(interrupted=self.interrupted)

    @property
    def kept(self) -> list[Kept]:
        """What each of the networks kept."""
        return [one.kept[0] for one in self.trained.values()]

    @property
    def chosen(self) -> Kept:
        """What the middle one of the networks kept."""
        return middle(self.kept)

    @property
    def head_alone(self) -> bool:
        """Whether that is the head on the body as it was."""
        return self.chosen.phase == "frozen"

    @property
    def decided(self) -> bool:
        """Whether the networks that are still to be trained cannot change that it is."""
        alone = sum(one.phase == "frozen" for one in self.kept)
        return alone > (len(self.folds.items) - 1) // 2


def divide(run: Prepared) -> Division | None:
    """The folds of ``--cross-fit``; None where no body is to be cross-fitted.

    Raises
    ------
    SecondhandError : the user asked for a number of bodies that cannot be; the message names the remedy.
    """
    asked, train = run.settings.train.cross_fit, run.settings.train
    if not asked:
        return None
    if not train.epochs and train.freeze_epochs == "fit":
        log.info("--cross-fit: only a head is trained, which is cross-fitted in any case")
        return None
    why, remedy = run.settings.against_cross_fit or _why_not(run), ". Leave --cross-fit out"
    if not why:
        try:
            return _folds(run, USUAL_BODIES if asked == "auto" else asked)
        except SecondhandError as error:
            why, remedy = str(error), ", or leave --cross-fit out"
    if asked != "auto":
        raise SecondhandError(f"--cross-fit {asked}: {why}{remedy}")
    log.info("--cross-fit auto: no bodies are cross-fitted; %s", one_line(why))
    return None


def _why_not(run: Prepared) -> str:
    """Why the files of a run are not to be divided; "" if they may be."""
    if not run.task.exclusive:
        return "it is for one label a file"
    unsplit, frame = run.items.table.fact(Unsplit).frame, run.items.table.frame
    named = sorted({"valid", "calibration"} & {*unsplit["split"]})
    if named:
        return f"the data name files for {' and '.join(named)}, which measure"
    if frame.groupby("path")["group"].nunique().gt(1).any():
        return "the items of a file are in several groups, and a fold would share the file with the others"
    if len(run.items.rows) > MOST:
        return f"with more than {MOST} items, those that are held out measure as well"
    return ""


def _folds(run: Prepared, count: int) -> Division:
    """Divide the files; raises SecondhandError if a fold, or its validation files, cannot be."""
    items, seed = run.items, run.settings.train.seed
    frame = items.table.frame
    teaches = frame["split"].isin(LEARNT)
    known = frame.loc[teaches]
    units = split_units(known)
    if units.nunique() < count:
        raise SecondhandError(
            f"there {'is' if units.nunique() == 1 else 'are'} only {counted(units.nunique(), 'group')} of files to "
            "divide, and each body needs one to measure. Use fewer bodies, or add files"
        )
    labels = run.task.encode(known["label"].tolist(), items.labels)
    of_known = assign_folds(labels, units.to_numpy(np.int64), seed, most=count)
    numbers = [int(number) for number in np.unique(of_known[of_known != IN_ALL])]
    if len(numbers) < count:
        raise SecondhandError(
            f"only {counted(len(numbers), 'part')} of the files can be left out without leaving a class out. Use fewer "
            "bodies, or add files"
        )
    of_items = np.full(len(frame), IN_ALL)
    of_items[teaches] = of_known
    parts = dict[int, Loaded]()
    for number in numbers:
        outside = known.loc[of_known != number]
        held_out = hold_out(outside, run.settings.splits.valid, seed=seed)
        split = frame["split"].mask(pd.Series(of_items == number, frame.index), MEASURED)
        split.loc[outside.index] = np.where(held_out, "valid", "train")
        if why := missing_split(frame.assign(split=split).loc[teaches], ("train", "valid")):
            raise SecondhandError(f"without one of the parts {why}. Add files")
        parts[number] = _with_splits(items, split)
    return Division(of_items, parts)


def _with_splits(items: Loaded, split: pd.Series) -> Loaded:
    """The items with other splits of the rows of the table. Rows of the background keep theirs, but those in recordings that
    are held out teach nothing.
    """
    table, rows = items.table, items.rows
    by_key = dict(zip(_keys(table.frame), split, strict=True))
    of_rows = pd.Series([by_key.get(key) for key in _keys(rows)], rows.index, dtype=object)
    changed = rows["label"].ne(UNKNOWN) & of_rows.notna()
    of_path = dict(zip(table.frame["path"], split, strict=True))
    rows = rows.assign(
        split=rows["split"].mask(changed, of_rows).where(changed, _kept(rows, of_path))
    )
    background = table.background
    if len(background):
        background = background.assign(split=_kept(background, of_path))
    table = replace(table, frame=table.frame.assign(split=split), background=background)
    return items._replace(table=table, rows=rows)


def _kept(background: pd.DataFrame, of_path: Mapping[str, str]) -> pd.Series:
    """The split of each row of the background: its own, or that of its recording where it would teach and that does not."""
    of_recording = background["path"].map(of_path)
    leaks = background["split"].eq("train") & of_recording.notna() & of_recording.ne("train")
    return background["split"].mask(leaks, of_recording)


def _keys(rows: pd.DataFrame) -> list[tuple[str, str]]:
    """What the rows that show an item have in common with it."""
    return [*zip(rows["path"], rows["group"].astype(str), strict=True)]


def training_of(
    run: Prepared, *, cross_fitted: bool = False, chosen: Kept | None = None
) -> Training:
    """What the networks of a run are trained on, and how."""
    return Training(
        run.folder, run.items, run.settings, run.device, run.task, run.decoded, run.origin, cross_fitted, chosen
    )  # fmt: skip


def train_bodies(
    run: Prepared,
    folds: Division,
    on_improvement: Callable[[Prepared, nn.Sequential, Kept, ByPart], None],
    *,
    cross_fitted: bool,
) -> Bodies:
    """Train a network for each fold, in ``checkpoint/body-N/``; those that an earlier process trained are read.

    Ctrl-C ends it with the networks that there are.

    Parameters
    ----------
    on_improvement : called during the first training with its run and as in `train_members`.
    cross_fitted : heads will measure if the head alone is best. As soon as that is decided no more bodies are trained.

    Raises
    ------
    SecondhandError : as in `train_members`.
    KeyboardInterrupt : Ctrl-C before there is any network.
    """
    count = len(folds.items)
    log.info(
        "Cross-fitting: %d networks are trained one after the other, %d of them without a part of the files each, which "
        "it then measures, and the last on all files. That takes about %d times as long as one",
        count + 1, count, count + 1,
    )  # fmt: skip
    # From the first model on that is usable: its parts of the files are not those in the items.csv of the run.
    _record(run, count)
    trained = dict[int, Trained]()
    for turn, (number, items) in enumerate(folds.items.items(), 1):
        of_fold = replace(run, items=items)
        try:
            improved = partial(on_improvement, of_fold) if turn == 1 else None
            trained[number] = _train(of_fold, turn, count, improved, cross_fitted=cross_fitted)
        except KeyboardInterrupt:
            if not trained:
                raise
            return _ended(Bodies(folds, trained, True), count)
        if trained[number].interrupted:
            if turn > 1:
                del trained[number]
            return _ended(Bodies(folds, trained, True), count)
        if cross_fitted and turn < count and Bodies(folds, trained, False).decided:
            log.info(
                "The head alone is best, so no more bodies are trained: heads measure the files"
            )
            break
    return Bodies(folds, trained, False)


def _train(
    run: Prepared,
    turn: int,
    count: int,
    on_improvement: OnImprovement | None,
    *,
    cross_fitted: bool,
) -> Trained:
    """Train the network of a fold. Its ``items.csv`` says what it has learnt from, and what it measures."""
    folder = run.folder / "checkpoint" / f"body-{turn}"
    folder.mkdir(parents=True, exist_ok=True)
    words, split = f"Body {turn} of {count + 1}", run.items.table.frame["split"]
    measured = counted(int(split.eq(MEASURED).sum()), "item")
    write_beside(folder / "items.csv", csv_text(without_empty(run.items.table.frame)).encode())
    log.info("%s: trained without %s, which it then measures", words, measured)
    set_seed(run.settings.train.seed)
    built = (deepcopy(run.network), run.spec, run.preprocessing)
    with progress.part(words):
        training = training_of(replace(run, folder=folder), cross_fitted=cross_fitted)
        return train_members(training, built, on_improvement)


def _ended(bodies: Bodies, count: int) -> Bodies:
    """After Ctrl-C: the run is completed by one network, as if it had been asked for."""
    log.warning(
        "The run is completed with body 1 of %d, which only the files measure that it has not seen", count + 1
    )  # fmt: skip
    return bodies


def train_on_all(run: Prepared, bodies: Bodies) -> Trained | None:
    """Train the network of the model on all files, by the recipe of the others; None after Ctrl-C.

    Its validation files are among those that it learns from, and choose nothing.
    """
    count, settings = len(bodies.folds.items), run.settings
    if settings.train.freeze_epochs == "fit" and bodies.head_alone:
        settings = settings.filled(epochs=0)
    valid = run.items.rows.loc[run.items.rows["split"].eq("valid")]
    rows = pd.concat([_all_taught(run.items).rows, valid], ignore_index=True)
    log.info("Body %d of %d: trained on all files", count + 1, count + 1)
    set_seed(settings.train.seed)
    try:
        with progress.part(f"Body {count + 1} of {count + 1}"):
            run = replace(run, items=run.items._replace(rows=rows), settings=settings)
            built = (run.network, run.spec, run.preprocessing)
            trained = train_members(training_of(run, chosen=bodies.chosen), built)
    except KeyboardInterrupt:
        trained = None
    if trained is None or trained.interrupted:
        _ended(bodies, count)
        return None
    return trained


def _all_taught(items: Loaded) -> Loaded:
    """The items with all that teach in the training split."""
    split = items.table.frame["split"]
    return _with_splits(items, split.mask(split.isin(LEARNT), "train"))


def measured_by(run: Run, folds: Division, predictors: Mapping[int, Predictor]) -> Run:
    """The run with all files in its training split, each of which is measured by the network that has not seen it.

    Parameters
    ----------
    run : its predictor is that of the network that was trained on all files.
    predictors : of each fold that of the network that has not seen it.
    """
    items, seed = _all_taught(run.items), run.settings.train.seed
    trained = reference_rows(items.rows, seed)
    reference, truths, _ = outputs_of_rows(run.predictor, trained, REFERENCE_STEP)
    complete = len(truths) == len(trained)
    place = {part: n for n, part in enumerate(parts_of(trained))} if complete else {}
    numbers = {name: n for n, name in enumerate(run.bundle.classes)}
    features, by_body = dict[int, tuple[NDArray[np.float32], NDArray[np.int64]]](), {}
    for number, predictor in predictors.items():
        learnt = reference_rows(folds.items[number].rows, seed)
        found, names, _ = outputs_of_rows(predictor, learnt, REFERENCE_STEP)
        assert found.features is not None
        features[number] = found.features, np.array([numbers[name] for name in names], np.int64)
        places = [place[part] for part in parts_of(learnt) if part in place]
        by_body[number] = np.array(places, np.int64)
    by_key = dict(zip(_keys(items.table.frame), folds.of_items.tolist(), strict=True))
    of_trained = np.array([by_key.get(key, IN_ALL) for key in _keys(trained)], np.int64)
    cross = CrossFit(
        folds.of_items,
        {**predictors},
        reference,
        truths,
        of_trained if complete else np.full(len(truths), IN_ALL),
        taught_body=False,
        distances=_distances(features),
        by_body=by_body,
    )
    of_folds = Protocol(protocol(items.table, cross))
    items = items._replace(table=items.table.knowing(of_folds))
    _record(run, len(predictors))
    return replace(run, items=items, cross=cross)


def _record(run: Prepared, count: int) -> None:
    """Record that no file is new to the model of the run, whatever its part in ``items.csv``."""
    facts = {"folds": count, "body": True, "bodies": True}
    write_beside(run.folder / CROSS_FITTED, json.dumps(facts).encode())


def _distances(
    features: Mapping[int, tuple[NDArray[np.float32], NDArray[np.int64]]],
) -> dict[int, tuple[KNN, RMDS | None]]:
    """Of each fold the distances to the files that its network has learnt from, on as many axes for all."""
    least = min(len(labels) for _, labels in features.values())
    axes, fitted = max(1, min(AXES, least // PER_AXIS)), dict[int, tuple[KNN, RMDS | None]]()
    for number, (x, labels) in features.items():
        knn, score = KNN(), RMDS(axes)
        knn.fit(x, (), ())
        score.fit(x, (), labels)
        fitted[number] = knn, score
    return fitted
