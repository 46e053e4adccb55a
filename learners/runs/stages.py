"""The stages of a run: train, calibrate, predict and measure, report, write ONNX."""

from __future__ import annotations

import logging
import os
import shlex
from collections.abc import Collection
from dataclasses import replace
from functools import partial

import pandas as pd
from torch import nn

from datasets.core import progress
from datasets.core.errors import Rejected
from datasets.core.part import PART_COLUMNS, parts_of
from datasets.core.program import typed_words
from datasets.items.facts import Groups, Inputs, Protocol
from datasets.items.labels import UNKNOWN, parse_names
from datasets.kinds.views import PLAIN
from datasets.steps.earlier import are_all_learnt, earlier_items, read_items
from learners.backbones.building import drop_background_row, first_member
from learners.backbones.spec import NetworkSpec
from learners.cli.result import (
    BY_BODIES,
    TAUGHT_BODY,
    Result,
    find_confusions,
    label_counts,
)
from learners.evaluation.held_out import (
    Evaluation,
    Measured,
    outputs_to_calibrate,
    predict_held_out,
    reference_rows,
)
from learners.evaluation.refused import usually_refused
from learners.files.jsonable import jsonable
from learners.files.names import shared_provenance
from learners.inference.exporting import write_network
from learners.inference.options import Computing, Opening
from learners.inference.passed import Passed
from learners.inference.predictor import REFERENCE, Predictor
from learners.model.bundle import Bundle, add_onnx, save_bundle
from learners.report.report import write_report
from learners.rule.base import AnyRule
from learners.runs.after_evaluation import measured_further
from learners.runs.after_training import found_after
from learners.runs.backbone_selection import as_table
from learners.runs.cross_fit_bodies import (
    Bodies,
    divide,
    measured_by,
    train_bodies,
    train_on_all,
    training_of,
)
from learners.runs.cross_fitting import (
    as_measured,
    cross_fit,
    may_cross_fit,
    measured_of,
    of_path,
    predict_cross,
    under,
)
from learners.runs.folder import provenance, write_csv
from learners.runs.run import Prepared, Run
from learners.runs.warm_start import lineage
from learners.training.describe import kept_in_words
from learners.training.features import outputs_by_part
from learners.training.keep import Kept
from learners.training.members import train_members
from learners.training.probe import ByPart

log = logging.getLogger(__name__)


def train(run: Prepared) -> Run:
    """Train the networks of a run; write ``history.csv`` and ``checkpoint/``.

    An interrupted training is resumed. As soon as the head is trained, ``model/`` holds a first model; epochs that improve
    it replace it.

    Raises
    ------
    SecondhandError : a setting does not suit the network or the items.
    """
    cross_fitted, bodies = may_cross_fit(run), None
    if (folds := divide(run)) is not None:
        bodies = train_bodies(run, folds, _write_model_so_far, cross_fitted=cross_fitted)
    trained = None
    if bodies is not None and not bodies.interrupted:
        trained = train_on_all(run, bodies)
    if bodies is not None and trained is None:  # after Ctrl-C
        items, trained = bodies.first
        trained = trained._replace(interrupted=True)
        run, cross_fitted, bodies = replace(run, items=items), False, None
    if trained is None:
        training = training_of(run, cross_fitted=cross_fitted)
        built = (run.network, run.spec, run.preprocessing)
        trained = train_members(training, built, partial(_write_model_so_far, run))
    if trained.left_out:
        table = run.items.table.leaving_out(trained.left_out)
        run = replace(run, items=run.items._replace(table=table))
        write_csv(run.folder / "rejected.csv", table.rejected, Rejected._fields)
    table = run.items.table
    kept = "; ".join(map(kept_in_words, trained.kept))
    if joint := _prediction_differences(run, trained.spec):
        kept += f" (validated one network, picture and window at a time; predictions are means over {joint})"
        log.debug("Each epoch is validated without averaging; predictions average over %s", joint)
    notes = provenance(table, run.command, run.began) | {"kept": kept}
    if run.origin is not None and (model := run.settings.warm_start.from_) is not None:
        notes |= lineage(model, run.origin, run.folder)
    if run.selection is not None:
        notes["backbone"] = run.selection.summary
    predictor = _predictor(run, run.model(trained.network, trained.spec, notes), trained.features)
    done = Run(**vars(run), predictor=predictor, interrupted=trained.interrupted)
    if bodies is not None and not (cross_fitted and bodies.head_alone):
        return measured_by(done, bodies.folds, _predictors(run, bodies))
    if cross_fitted:
        return cross_fit(done, trained.kept, trained.features)
    return done


def _predictor(run: Prepared, bundle: Bundle, features: ByPart) -> Predictor:
    """The predictor of a run, whose files pass through the network once, and those with ``features`` not at all."""
    passed, items = Passed(run.folder), run.items
    if features and run.tta_views == (PLAIN,):
        valid = items.rows.loc[items.rows["split"].eq("valid")]
        shown = parts_of(pd.concat([reference_rows(items.rows, run.settings.train.seed), valid]))
        for outputs in outputs_by_part(first_member(bundle.network), features, shown):
            passed.put(*outputs)
    return Predictor(
        bundle,
        lookup=items.table.fact(Inputs).lookup,
        passed=passed,
        opening=Opening(decoded=run.decoded),
        computing=Computing(bs=run.settings.train.bs, device=run.settings.speed.device),
    )


def _predictors(run: Prepared, bodies: Bodies) -> dict[int, Predictor]:
    """Of each fold the predictor of the network that has not seen it."""
    found = dict[int, Predictor]()
    for number, trained in bodies.trained.items():
        model = run.model(trained.network, trained.spec, {})
        of_fold = replace(run, items=bodies.folds.items[number])
        found[number] = _predictor(of_fold, model, trained.features)
    return found


def _write_model_so_far(
    run: Prepared, network: nn.Sequential, kept: Kept, features: ByPart
) -> None:
    """Write ``model/`` with this network, calibrated. It is usable while the training continues."""
    items = run.items
    if items.has_background:
        drop_background_row(network)
    spec = replace(run.spec, n_classes=len(items.table.classes))
    notes = provenance(items.table, run.command, run.began) | {"kept": kept_in_words(kept)}
    bundle = run.model(network, spec, notes)
    predictor = _predictor(run, bundle, features)
    rule = _fitted_rule(run, predictor)
    predictor.close()
    save_bundle(replace(bundle, rule=rule), run.folder / "model")
    log.info("Usable now: %s (%s). The training continues", run.folder / "model", notes["kept"])


def calibrate(run: Run) -> Run:
    """The run with its model calibrated on the calibration split, or on all files if it is cross-fitted."""
    if run.cross is not None:
        measured = measured_of(run, run.cross)
        rule = _rule_of(run, measured, run.predictor)
        calibrated = replace(run, predictor=run.predictor.under(rule))
        assert measured.folds is not None
        return replace(calibrated, cross=under(calibrated, run.cross, rule, measured.folds))
    return replace(run, predictor=run.predictor.under(_fitted_rule(run, run.predictor)))


def _fitted_rule(run: Prepared, predictor: Predictor) -> AnyRule:
    """The rule of a model, fitted to the calibration split."""
    items, settings = run.items, run.settings
    measured = outputs_to_calibrate(predictor, items.table, items.rows, settings.train.seed)
    return _rule_of(run, measured, predictor)


def _rule_of(run: Prepared, measured: Measured, predictor: Predictor) -> AnyRule:
    """The rule of a model, fitted to outputs of its network."""
    settings = run.settings
    rule = run.task.fit_rule(measured, predictor.classes, settings.confidence)
    temperature = rule.calibrator.temperature.value
    log.debug("Temperature %.2f from %d items", temperature, len(measured.paths))
    for note in rule.notes:
        log.debug("  %s", note)
    return rule


def predict(run: Run) -> tuple[Run, Evaluation]:
    """Predict and measure the calibration and test items of a run and its files of unknown classes.

    Writes ``predictions.csv``, and ``model/`` with the metrics. The run is returned without unknown items that a warm start
    has learnt since.
    """
    bundle, train, origin = run.bundle, run.settings.train, run.origin
    if run.cross is None:
        evaluation = predict_held_out(run.predictor, run.items.table)
    else:
        evaluation = predict_cross(run, run.cross)
    if origin is not None:
        run, evaluation = _without_learnt_unknown(run, origin, evaluation)
    table = run.items.table
    evaluation = run.task.measure(evaluation, bundle, bundle.rule)
    if run.task.exclusive and (usual := usually_refused(evaluation)) is not None:
        evaluation.metrics["refused"] = jsonable(usual)
    if run.cross is not None:
        evaluation.metrics[TAUGHT_BODY] = run.cross.taught_body
    elif are_all_learnt(run.folder):  # after Ctrl-C
        evaluation.metrics[BY_BODIES] = True
    if run.cross is None:
        evaluation = measured_further(evaluation, run.predictor, table, {})
    else:
        measured, others = (
            replace(table, frame=as_measured(table.frame, run.cross)),
            of_path(table, run.cross),
        )
        evaluation = measured_further(evaluation, run.predictor, measured, others)
    bundle.metrics = evaluation.metrics
    bundle.provenance |= shared_provenance({"protocol": table.fact(Protocol).text})
    bundle.provenance["headline"] = evaluation.figures["headline"]["message"]
    write_csv(run.folder / "predictions.csv", evaluation.predictions)
    save_bundle(bundle, run.folder / "model")
    reference_items = reference_rows(run.items.rows, train.seed)
    reference = bundle.rule.distance.reference if run.task.exclusive else None
    # The lengths differ if a training file has become unreadable.
    if reference is not None and len(reference_items) == len(reference):
        columns = ["path", "label", *PART_COLUMNS]
        write_csv(run.folder / REFERENCE, reference_items[columns])
    tables = {}
    if run.selection is not None:
        tables["Backbones"] = as_table(run.selection.candidates)
    evaluation = replace(evaluation, tables=tables)
    return run, replace(evaluation, found=found_after(run, evaluation))


def _without_learnt_unknown(
    run: Run, origin: Bundle, evaluation: Evaluation
) -> tuple[Run, Evaluation]:
    """Remove files of the earlier run's unknown classes that look like a new class; list them as rejected."""
    table, model = run.items.table, run.settings.warm_start.from_
    items = None if model is None else earlier_items(model)
    if items is None:
        return run, evaluation
    earlier = read_items(items)
    ood = set(earlier["path"][earlier["label"].eq(UNKNOWN)])
    new = sorted(set(run.bundle.classes) - set(origin.classes))
    predictions = evaluation.predictions
    learned_since = maybe_of_new_class(predictions, ood, new)
    if not learned_since.any():
        return run, evaluation
    table = table.leaving_out(
        Rejected(
            path,
            f"of an unknown class in the earlier run, but looks like the new class {best_class!r}",
        )
        for path, best_class in predictions.loc[learned_since, ["path", "best"]].itertuples(
            index=False
        )
    )
    write_csv(run.folder / "rejected.csv", table.rejected, Rejected._fields)
    left = ~learned_since[predictions["split"].eq(UNKNOWN)].to_numpy()
    table = replace(table, unknown_items=table.unknown_items.loc[left].reset_index(drop=True))
    log.info(
        "Files of the earlier run's unknown classes that look like a new class (%s) and no longer count as unknown: %d. "
        "rejected.csv lists them; label those that belong to the class",
        ", ".join(new), learned_since.sum(),
    )  # fmt: skip
    run = replace(run, items=run.items._replace(table=table))
    return run, evaluation.where(~learned_since.to_numpy())


def maybe_of_new_class(
    predictions: pd.DataFrame, ood: Collection[str], new: Collection[str]
) -> pd.Series:
    """Whether each row is a file of unknown classes (``ood`` paths) of an earlier run whose best class is ``new``.

    It may belong to that class, so neither accepting nor refusing it is clearly wrong. Accepted and refused files are
    marked alike, so the acceptance rate of the others does not change.
    """
    old = predictions["split"].eq(UNKNOWN) & predictions["path"].isin(ood)
    return old & predictions["best"].isin(new)


def report(run: Run, evaluation: Evaluation) -> None:
    """Write ``report/`` from the predictions and the model."""
    trained = reference_rows(run.items.rows, run.settings.train.seed)
    with progress.step("Writing the report"):
        write_report(
            run.folder / "report",
            run.predictor,
            run.items.table,
            run.task.sections(evaluation, trained),
            history=run.folder / "history.csv",
            notices=evaluation.lines,
        )


def result(run: Run, evaluation: Evaluation) -> Result:
    """The result of a run, as values."""
    table, metrics = run.items.table, run.bundle.metrics
    calibrating = table.frame.loc[table.frame["split"].eq("calibration"), "label"]
    if run.cross is not None:
        calibrating = table.frame.loc[run.cross.measured, "label"]
    present = {name for label in calibrating for name in parse_names(label)}
    return Result(
        metrics=metrics,
        confusions=tuple(find_confusions(evaluation.predictions, metrics)),
        protocol=table.fact(Protocol).text,
        groups=table.fact(Groups).number,
        notices=tuple(evaluation.lines),
        files=len(table.frame),
        uncalibrated=tuple(name for name in table.classes if name not in present),
        labels=tuple(label_counts(evaluation.figures)),
    )


def write_onnx(run: Run) -> None:
    """Write the model's ``model.onnx`` where `writes_onnx` says so; after a training on a GPU, say how to get it."""
    setting, device = os.environ.get("SECONDHAND_ONNX", ""), run.predictor.device
    if writes_onnx(setting, device):
        with progress.step("The model is ready to use. Writing model.onnx for faster predictions"):
            add_onnx(run.bundle, run.folder / "model", write_network)
    elif not setting:
        export = [*typed_words("export"), str(run.folder / "model"), "--inside"]
        log.info("For predictions on a CPU that start fast: %s", shlex.join(export))


def writes_onnx(setting: str, device: str) -> bool:
    """Whether a run ends with the export, which takes seconds of one core.

    Predictions on a CUDA GPU do not use it, so there it is written only with ``SECONDHAND_ONNX=1``.

    Parameters
    ----------
    setting : of ``SECONDHAND_ONNX`` in the environment: "0", "1", or "" without one.
    device : name of the device that predicts.
    """
    return setting != "0" if setting else not device.startswith("cuda")


def _prediction_differences(run: Prepared, spec: NetworkSpec) -> str:
    """What predictions average over and the validation of an epoch does not (networks, variants, windows); or ""."""
    members, tta_views, items = spec.members, len(run.tta_views), run.items
    parts = [
        *([f"{members} networks"] if members > 1 else []),
        *([f"{tta_views} variants of each file (--tta)"] if tta_views > 1 else []),
        *(["all windows of a recording"] if items.windows > len(items.table.frame) else []),
    ]
    return " and ".join(parts)
