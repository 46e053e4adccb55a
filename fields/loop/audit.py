"""usage: secondhand audit MODEL PATH... | MODEL --labels TABLE [flags]

Estimate how often a model is right on your own unlabelled files. First draw the files that tell most about it, by
stratified sampling, and label them in the table, or on the page by app --label. Then give the table as --labels: it
prints the accuracy with 95 % limits, and --out writes a model fitted to the site. Exit status: 0; 3 if some files
or rows could not be used (they are listed); 2 for a wrong call.

examples:
  secondhand audit runs/photos/model new/ --n 50 --out audit.csv
  secondhand audit runs/photos/model --labels audit.csv
  secondhand audit runs/photos/model --labels audit.csv --out site-model/
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.cli.conflicts import Conflict, Missing
from datasets.cli.options import option, positional
from datasets.core.errors import Rejected, SecondhandError
from fields.loop.pool_settings import PoolSettings
from learners.cli import console, result
from learners.cli.flags import read_call

if TYPE_CHECKING:
    from fields.loop.auditing import AuditLabels
    from learners.evaluation.calibration_metrics import Estimate
    from learners.model.bundle import Bundle

#: Labels from which the accuracy of a class is given.
ENOUGH = 10
#: Drawn files of a class, by their best guess, below which it is named; and how many such classes are.
FEW, NAMED = 5, 12
#: Accuracy of answers that a threshold for the site aims at, if the model has no target of its own.
TARGET = 0.95


#: What a call has to name.
EITHER = "name either files to draw from, or a labelled table as --labels"


@dataclass(kw_only=True)
class AuditSettings(PoolSettings):
    """audit"""

    paths: list[str] = positional("Files, folders, or patterns in quotes to draw from.", [])
    n: int = option(50, "Number of files, or windows of long recordings, to draw.")
    labels: Path | None = option(
        None,
        "Table drawn by this command, with labels filled in: estimate the accuracy.",
        metavar="FILE",
    )
    out: Path | None = option(
        None,
        "When drawing: the table to fill in, with a page that shows the files beside it (default: audit.csv). With "
        "--labels: folder for a copy of the model with temperature and threshold fitted to these labels.",
    )

    conflicts = (
        Conflict("labels", "paths", remedy=EITHER),
        Missing(("labels", "paths"), "neither files nor --labels", EITHER),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 3 if some files or rows could not be used."""
    settings = read_call(AuditSettings, argv, __doc__)

    console.start(settings)
    from learners.model.places import model_folder

    settings.model = str(model_folder(settings.model))
    return _draw(settings) if settings.labels is None else _estimate(settings, settings.labels)


def _draw(settings: AuditSettings) -> int:
    """Draw files, write the table and the sheet, and print what to do with them."""
    from fields.loop.auditing import columns_of, draw_audit
    from fields.loop.listing import as_text, write_list
    from fields.loop.sheets import Shot
    from fields.loop.teaching import Pool, tell_pool

    out = settings.out or Path("audit.csv")
    pool = Pool.open(settings, settings.paths, out)
    audit = draw_audit(pool, settings.model, n=settings.n)
    status = tell_pool(pool, settings.paths)
    if not audit.rows:
        raise SecondhandError(
            "No files are left to draw from: all are of the model's run or copies of them"
            f"{', or without signal' * bool(pool.silent)}. Give files that the run did not use"
        )
    if pool.labelled:
        print(
            "The audit's figures, such as its share of unknown classes, do not count files of the model's run",
            file=sys.stderr,
        )
    shots = [Shot(part, str(n), "") for n, part in enumerate(audit.parts, start=1)]
    lead = (
        f"{len(shots)} of {pool.judged} {pool.unit}, drawn at random within groups of similar confidence. Fill in the column "
        f"label of {out.name}, which has the same order: a class, unknown, or the name of a class that the model lacks. "
        "The model's guesses are not shown, so that they do not influence you; the table has them in the columns guess, "
        "answer and probability: hide these, or label on the page."
    )
    text = as_text(columns_of(pool.predictor.kind), audit.rows)
    title = "What to label for the audit"
    written = write_list(out, text, pool.predictor, shots, title=title, lead=lead)
    print(
        f"Drawn: {len(shots)} of {pool.judged} {pool.unit}; the model answers {audit.answered} of the {pool.judged}\n"
        f"{hardly_drawn([str(row['guess']) for row in audit.rows], pool.predictor.classes)}"
        f"{written}\n"
        f"Label:  fill in the column label, or  {console.as_typed('app', [settings.model, '--label', out])}\n"
        f"Then:   {console.as_typed('audit', [settings.model, '--labels', out])}"
    )
    return status


def hardly_drawn(guesses: Sequence[str], classes: Sequence[str]) -> str:
    """A line on the classes of which fewer than `FEW` files were drawn, by their best guess; "" where there are none."""
    counts = Counter(guesses)
    few = sorted((counts[name], name) for name in classes if counts[name] < min(FEW, len(guesses)))
    if not few:
        return ""
    listed = ", ".join(f"{name}: {n} of {len(guesses)}" for n, name in few[:NAMED])
    more = f" and {len(few) - NAMED} more" if len(few) > NAMED else ""
    return f"Hardly drawn, by best guess: {listed}{more}. The labels say little of these classes\n"


def _estimate(settings: AuditSettings, table: Path) -> int:
    """Print the accuracy that the labels show; write the model for the site."""
    from fields.loop.auditing import labels_of, read_audit
    from learners.evaluation.stratified import accuracies, weighted_fraction
    from learners.files.lock import check_replaceable
    from learners.model.bundle import load_bundle

    if settings.out is not None:
        check_replaceable(settings.out, overwrite=settings.overwrite, mark="config.json")
    bundle = load_bundle(settings.model, network=False)
    audit = read_audit(table, settings.model)
    labels = labels_of(audit, bundle.classes, bundle.rule.ancestors)
    files, count = sum(s.files for s in labels.strata), len(labels.right)
    answered = sum(s.files for s in labels.strata if s.answered)
    estimates = accuracies(labels.strata)
    unknown = weighted_fraction(~labels.known, labels.weights)
    left_empty = ""
    if rest := len(audit.rows) - count:
        left_empty = f" The {rest} without a label are taken to be like the others of their group."
    lines = [
        f"Labelled: {count} of the {len(audit.rows)} files drawn from {files}.{left_empty}",
        f"Right here: {_limits(estimates['answers'])} of its answers. It answers {answered} of the {files} files.",
        f"Right here: {_limits(estimates['all'])} of all files, counting the most probable class of those that it "
        "refuses.",
        f"Files of unknown classes: {_limits(unknown)}.",
        *_classes(labels),
        _verdict(bundle, labels),
    ]
    for item in audit.rejected:
        print(item, file=sys.stderr)
    print()
    result.print_result(lines, "At this site")
    status = 3 if audit.rejected else 0
    if settings.out is None:
        words = (settings.model, "--labels", table, "--out", "site-model")
        fitting = console.as_typed("audit", words)
        print(f"Fit temperature and threshold to the site:  {fitting}")
    else:
        status = max(status, _refit(settings, settings.out, labels))
    both = ("--from", settings.model, "--data", table)
    training = console.as_typed("finetune", both)
    same = (
        "Train with these labels all the same:"
        if _is_as_good(bundle, labels)
        else "Train with these labels:"
    )
    print(f"{same}  {training}")
    return status


def _classes(labels: AuditLabels) -> list[str]:
    """A sentence for each class that is answered for at least `ENOUGH` labelled files."""
    import numpy as np

    from learners.evaluation.stratified import weighted_fraction

    answers = np.array([row["answer"] for row in labels.table.rows])
    lines = []
    for name, n in sorted(Counter(answers[labels.answered].tolist()).items()):
        if n >= ENOUGH:
            value = weighted_fraction(
                labels.right[answers == name], labels.weights[answers == name]
            )
            lines.append(f"Answered {name}: {_limits(value)} right, from {n} labels.")
    return lines


def _verdict(bundle: Bundle, labels: AuditLabels) -> str:
    """Whether the model is less accurate on known classes here than on its own held-out files."""
    here = _of_known(labels)
    if (part := result.part_with(bundle.metrics, "accuracy")) is None:
        return "The model folder has no accuracy to compare with."
    home = float(bundle.metrics[f"{part}_accuracy"])
    low, high = bundle.metrics.get(f"{part}_accuracy_interval") or (home, home)
    own = _limits((home, low, high)) if low < high else result.percent(home)
    compared = (
        f"Of files of its classes {_limits(here)} are right here, and {own} of its own "
        f"{result.part_name(part, result.is_cross_fitted(bundle.metrics, part))} files were"
    )
    if here[2] < low:
        return f"{compared}: it is less accurate here, so a training with labels from here is worth it."
    if here[0] < low:
        return f"{compared}: it may be less accurate here, but more labels are needed to tell (--n 200)."
    return f"{compared}: these labels show no difference, so a training is not clearly worth it."


def _is_as_good(bundle: Bundle, labels: AuditLabels) -> bool:
    """Whether the model is as accurate here as on its own held-out files, or more."""
    part = result.part_with(bundle.metrics, "accuracy")
    if part is None:
        return False
    low, _ = (
        bundle.metrics.get(f"{part}_accuracy_interval") or [bundle.metrics[f"{part}_accuracy"]] * 2
    )
    return _of_known(labels)[0] >= float(low)


def _of_known(labels: AuditLabels) -> Estimate:
    """Fraction of files of known classes whose answer, or most probable class, is right."""
    from learners.evaluation.stratified import weighted_fraction

    return weighted_fraction(labels.right[labels.known], labels.weights[labels.known])


def _refit(settings: AuditSettings, out: Path, labels: AuditLabels) -> int:
    """Write a copy of the model with temperature and threshold fitted to the labels."""
    from math import isfinite

    import numpy as np

    from learners.files.jsonable import jsonable
    from learners.inference.predictions import stack_outputs
    from learners.loading.predictor import load_predictor
    from learners.model.bundle import load_bundle, save_with_rule
    from learners.rule.numbers.arrays import Outputs
    from learners.rule.refitting import CERTAIN

    bundle = load_bundle(settings.model)
    predictor = load_predictor(bundle, **settings.computing)
    parts = labels.table.parts
    detailed = list(predictor.predict_detailed(parts))
    predictor.close()
    usable = [n for n, item in enumerate(detailed) if item.logits is not None]
    not_found = {item.path: item.reason for item in labels.table.not_found}
    for n, item in enumerate(detailed):
        if item.logits is None:
            path = labels.table.rows[n]["path"]
            why = not_found.get(path, str(item.prediction.reason))
            print(Rejected(path if path in not_found else parts[n].path, why), file=sys.stderr)
    if not usable:
        raise SecondhandError(f"--labels {settings.labels}: none of the labelled files can be read")
    logits, features = stack_outputs([detailed[n] for n in usable])
    numbers = {name: i for i, name in enumerate(bundle.classes)}
    truths = [numbers.get(labels.table.rows[n]["label"], -1) for n in usable]
    before = bundle.rule
    aim = before.terms.threshold.target
    target = aim if isfinite(aim) else TARGET
    rule = before.refitted(
        Outputs(logits.astype(np.float64), np.array(truths, np.int64), features),
        labels.weights[usable],
        target=target,
        paths=[parts[n].path for n in usable],
    )
    threshold, temperatures = (
        rule.terms.threshold,
        [one.calibrator.temperature.value for one in (before, rule)],
    )
    files = sum(s.files for s in labels.strata)
    protocol = f"{len(usable)} labelled files of a site, drawn from {files}"
    value, *limits = _of_known(labels)
    save_with_rule(
        bundle,
        Path(settings.model),
        out,
        rule,
        note="temperature and threshold fitted to a site",
        protocol=protocol,
        headline="",
        # The labelled files are the calibration files of the site. Without any of a known class the value is NaN.
        metrics=jsonable(
            {
                "calibration_accuracy": value,
                # Of files that are all labelled there are none.
                "calibration_accuracy_interval": limits if limits[0] < limits[1] else None,
                "calibration_coverage": threshold.coverage,
                "calibration_items": len(usable),
            }
        ),
    )
    reached = (
        f"a strict one that promises nothing: {threshold.message}. Label more files."
        if threshold.message
        else f"the lowest at which at least {100 * target:.3g} % of the answers are right here, with a probability of "
        f"{100 * CERTAIN:.0f} % by these labels and the model's probabilities."
    )
    print(
        f"Temperature: {temperatures[0]:.2f} before, {temperatures[1]:.2f} here.\n"
        f"Threshold: {threshold.value:.3g}, {reached} It answers about {100 * threshold.coverage:.0f} % of these files.\n"
        f"Model for this site:  {out}"
    )
    return 3 if len(usable) < len(detailed) else 0


def _limits(limits: tuple[float, float, float]) -> str:
    """ "94 % (95 % limits 91 to 97 %)"."""
    value, low, high = limits
    if value != value:
        return "no label"
    if low == high:  # of files that are all labelled
        return f"{result.percent(value)} (all are labelled; other files from here may differ)"
    return f"{result.percent(value)} ({result.with_limits(low, high)})"
