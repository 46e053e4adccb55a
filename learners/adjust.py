"""usage: python -m learners.adjust MODEL [flags]

Choose between answering and refusing, without training. Prints how many held-out files the model answers under
stricter and looser rules, and how many answers are right; with --out writes a copy of the model with another rule.
The copy has the same network and needs no data. Exit status: 0; 2 for a wrong call.

examples:
  python -m learners.adjust runs/photos/model
  python -m learners.adjust runs/photos/model --keep-known 0.9 --out adjusted/
  python -m learners.adjust runs/photos/model --threshold 0.8 --out adjusted/
  python -m learners.adjust runs/photos/model --keep-unlike 0.99 --out adjusted/
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from datasets.cli.conflicts import Need
from datasets.cli.options import Checked, option, positional
from datasets.core.errors import SecondhandError
from datasets.core.program import installed_commands
from learners.cli import console, result
from learners.cli.commands import KEEP_KNOWN, OVERWRITING, THRESHOLD, model_help
from learners.cli.flags import read_call

if TYPE_CHECKING:
    from learners.model.bundle import Bundle
    from learners.rule.base import AnyRule
    from learners.rule.operating_points import OperatingPoints

#: Ends of the names of metrics that hold under every rule.
LASTING = ("_accuracy", "_accuracy_interval", "_items", "_map", "_map_interval")


@dataclass(kw_only=True)
class AdjustSettings(Checked):
    """adjust"""

    model: str = positional(model_help)
    keep_known: float | None = option(None, KEEP_KNOWN)
    threshold: float | None = option(None, THRESHOLD)
    keep_unlike: float | Literal["none"] | None = option(
        None,
        "Fraction of the calibration files that the distance lets pass (0.5 to 1), for a site that is unlike the training "
        "files; none refuses no file as out of distribution. Default: that of the model, 0.95.",
    )
    out: Path | None = option(
        None,
        "Folder for the copy of the model with this rule. Default: only print what the rules would answer.",
        metavar="FOLDER",
    )
    overwrite: bool = option(False, "Replace the model folder at --out.")

    @property
    def rule(self) -> dict[str, Any]:
        """The parts of the rule that are given, by name."""
        parts = {
            "keep_known": self.keep_known,
            "threshold": self.threshold,
            "keep_unlike": self.keep_unlike,
        }
        return {name: value for name, value in parts.items() if value is not None}

    conflicts = (
        OVERWRITING,
        Need("out", ("keep_known", "threshold", "keep_unlike"), "name the rule"),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0."""
    settings = read_call(AdjustSettings, argv, __doc__)
    chosen = settings.rule

    console.log_to_terminal()
    from learners.model.bundle import load_bundle
    from learners.model.places import model_folder

    settings.model = str(model_folder(settings.model))
    bundle = load_bundle(settings.model, network=False)
    adjusted(bundle.rule, chosen)  # raises before anything is printed
    if settings.out is None:
        _print_table(bundle, settings.model, chosen)
    else:
        _write(settings, settings.out, chosen)
    return 0


def adjusted(rule: AnyRule, chosen: Mapping[str, Any]) -> AnyRule:
    """A rule with the chosen parts; raises SecondhandError for values that it cannot have."""
    others = {name: value for name, value in chosen.items() if name != "keep_unlike"}
    changed = rule.but(**others)
    unlike = chosen.get("keep_unlike")
    if unlike is None:
        return changed
    return changed.keeping_unlike(1.0 if unlike == "none" else unlike)


def _print_table(bundle: Bundle, model: str, chosen: Mapping[str, Any]) -> None:
    """Print the model's operating points, with the ``chosen`` rule marked."""
    from learners.rule.operating_points import OperatingPoints

    if (table := OperatingPoints.read(bundle.metrics)) is None:
        kind = "" if bundle.rule.exclusive else ", because it is a multi-label model"
        if bundle.rule.exclusive and (note := bundle.provenance.get("note")):
            kind = f" ({note})"  # such as a copy that was fitted to a site
        raise SecondhandError(
            f"{model} does not store what other rules would answer{kind}. Give --threshold and --out, and measure the "
            "copy with learners.evaluate"
        )
    rows = [["rule", "answered", "right of these", "95 % limits", "unknown classes answered"]]
    for number, point in enumerate(table.points):
        rule = f"{point.rule} (this model)" if number == table.default else point.rule
        rule += " <- your rule" if point.overrides == chosen else ""
        counts = map(str, (point.answered, point.right, point.limits, point.unknown))
        rows.append([rule, *counts])
    unknown = table.unknown_items
    strange = f", and of {unknown} files of unknown classes" if unknown else ""
    print(
        f"Of {table.items} {result.part_name(table.split, table.cross_fitted)} files{strange}, from strict to loose:\n"
    )
    for row in rows:
        cells = [cell.rjust(len(name)) for cell, name in zip(row, rows[0], strict=True)]
        width = max(len(one[0]) for one in rows)
        print(row[0].ljust(width), *cells[1 : None if unknown else -1], sep="   ")
    command = console.command_line("adjust", model)
    if chosen:
        missing = all(point.overrides != chosen for point in table.points)
        print(
            f"\nThe table has no row for your rule: measure the copy with {_evaluate()}." * missing
        )
        for line in _given_up(bundle, chosen, model):
            print(line)
        print(
            f"Add --out FOLDER to write a copy with your rule:  {command} {_flags(chosen)} --out FOLDER"
        )
    else:
        others = [*table.looser, *(point for point in table.points if point.overrides)]
        if others:
            print("", *_given_up(bundle, others[0].overrides, model), sep="\n")
            print(f"Write a copy with another rule:  {command} {others[0].rule} --out FOLDER")


def _given_up(bundle: Bundle, chosen: Mapping[str, Any], model: str) -> list[str]:
    """Sentences on the conditions of the model's rule that another rule does not have, or has at a price."""
    from learners.rule.base import TARGET_ACCURACY, TARGET_PRECISION

    rule = adjusted(bundle.rule, chosen)
    before, after = bundle.rule.terms, rule.terms
    flags, lines = _flags(chosen), list[str]()
    if before.score and not after.score:
        lines.append(
            f"{flags} switches off the condition on the overall score: no file is refused as unusual."
        )
    given_up = {TARGET_ACCURACY: "accuracy", TARGET_PRECISION: "precision of labels"}
    if before.kind in given_up and after.kind != before.kind:
        lines.append(f"{flags} gives up the {given_up[before.kind]} that the model guarantees.")
    if "keep_unlike" in chosen:
        lines += _unlike(bundle.rule, rule, Path(model))
    return lines


def _unlike(before: AnyRule, after: AnyRule, model: Path) -> list[str]:
    """What another limit of the distance costs, by the held-out files of the model's run."""
    from learners.evaluation.unlike import passing_unlike

    old, new = (0.0 if one.distance.too_few else one.distance.alpha for one in (before, after))
    lines = [
        f"The distance refused {100 * old:.3g} % of known files as out of distribution; now {100 * new:.3g} %."
    ]
    if old == 0:
        lines[0] = (
            "The distance refuses no file of this model as out of distribution, so this changes nothing"
        )
        lines[0] += (
            f" ({before.distance.counted('calibration file')}). Lower --threshold answers more."
        )
        return lines
    allow = "probability and score allow it" if before.exclusive else "a label is probable enough"
    known, unknown = passing_unlike(model.parent, old, new) or (None, None)
    for what, part in (("known", known), ("unknown", unknown)):
        if part is not None and part.files:
            lines.append(
                f"Of {part.files} held-out files of {what} classes the distance refused {part.before}, and now {part.after}. "
                f"What passes it is answered where {allow}."
            )
    if unknown is None or not unknown.files:
        lines.append(
            "No file of unknown classes is at hand (finetune --unknown), so nothing shows how many more of them are "
            f"answered: measure the copy with {_evaluate()} --unknown."
        )
    return lines


def _evaluate() -> str:
    """The command that measures a model, as users call it here."""
    return installed_commands("learners.evaluate")


def _flags(chosen: Mapping[str, Any]) -> str:
    def text(value: Any) -> str:
        return value if isinstance(value, str) else f"{value:g}"

    return " ".join(f"--{name.replace('_', '-')} {text(value)}" for name, value in chosen.items())


def _write(settings: AdjustSettings, out: Path, chosen: Mapping[str, Any]) -> None:
    """Write the copy, and print what it answers."""
    from learners.files.lock import check_replaceable
    from learners.model.bundle import load_bundle, save_with_rule
    from learners.rule.operating_points import OperatingPoints

    check_replaceable(out, overwrite=settings.overwrite, mark="config.json")
    if out.resolve() == Path(settings.model).resolve():
        raise SecondhandError(f"--out {out} is the model itself. Name another folder")
    bundle = load_bundle(settings.model)
    before = OperatingPoints.read(bundle.metrics)
    after = before and (None if "keep_unlike" in chosen else before.at(chosen))
    rule, flags = adjusted(bundle.rule, chosen), _flags(chosen)
    looser = {*chosen} == {"keep_unlike"} and rule.distance.alpha <= bundle.rule.distance.alpha
    save_with_rule(
        bundle,
        Path(settings.model),
        out,
        rule,
        metrics=_metrics(bundle.metrics, before, after, looser=looser),
        note=f"adjusted: {flags}",
    )
    if before and after:
        print(f"It answered      {result.answers_at(before, before.own)}")
        print(f"Now it answers   {result.answers_at(after, after.own)}")
        if (before.own.answered, before.own.unknown) == (after.own.answered, after.own.unknown):
            print("Nothing changed: both rules answer the same number of these files.")
    else:
        print(
            f"{settings.model} does not store what it answers with {flags}: measure the copy with {_evaluate()}."
        )
    print(*_given_up(bundle, chosen, settings.model), f"Adjusted model:  {out}", sep="\n")
    print(f"Predict:         {console.command_line('predict', out)} FILE...")


def _metrics(
    metrics: Mapping[str, Any],
    before: OperatingPoints | None,
    table: OperatingPoints | None,
    *,
    looser: bool = False,
) -> dict[str, Any]:
    """The metrics of a copy: those that hold under every rule, and those of its operating point, if it is stored.

    ``looser`` : its rule refuses no file that the other one answers.
    """
    from learners.files.jsonable import jsonable

    kept: dict[str, Any] = {n: value for n, value in metrics.items() if n.endswith(LASTING)}
    if before is not None and table is not None:
        looser = table.own.answered >= before.own.answered
    # A looser rule refuses fewer files: a notice of more of them is only rarer.
    if looser and "refused" in metrics:
        kept["refused"] = metrics["refused"]
    if table is None:
        return kept
    point = table.own
    kept[f"{table.split}_coverage"] = point.answered / max(1, table.items)
    if point.answered:
        kept[f"{table.split}_accuracy_of_accepted"] = point.right / point.answered
        kept[f"{table.split}_accuracy_of_accepted_interval"] = [point.low, point.high]
    if table.unknown_items:
        kept["unknown_accepted"] = point.unknown / table.unknown_items
    return {**kept, "operating_points": jsonable(table)}


if __name__ == "__main__":
    console.run(main)
