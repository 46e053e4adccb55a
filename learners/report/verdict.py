"""The first sentence of a report: how good the model is, as green, amber or red."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from datasets.core.program import installed_commands
from learners.cli.result import (
    ALMOST_NOTHING,
    counts_of,
    is_cross_fitted,
    looser_rule,
    part_name,
    right_of_answered,
    with_limits,
)
from learners.evaluation.domain_shift import HIGHER, LOWER
from learners.report.templates import percent

#: Green needs a lower 95 % limit that is at most this far below the figure: fewer files could not tell.
WIDE = 0.2
#: Amber from this share of answered files of unknown classes: the usual rule refuses one known file in five so that
#: few unknown ones are answered, and is not worth that where it answers as many of them.
MANY_UNKNOWN = 0.2


class Verdict(NamedTuple):
    """A sentence and its ``colour``: green, amber (read the notices first) or red (do not rely on it)."""

    colour: str
    message: str


def verdict(
    figures: Mapping[str, Any],
    checks: Sequence[Mapping[str, Any]],
    problems: Sequence[str],
    copies: int = 0,
) -> Verdict:
    """Verdict of an evaluation where it has ``checks``, else of a training run.

    Parameters
    ----------
    figures : of `learners.evaluation.figures.all_figures`.
    checks : rows of `learners.evaluation.domain_shift.calibration_check`; none for a training run.
    problems : notices of the report; with any of them nothing is green.
    copies : number of files that are copies of training files.
    """
    if figures["evaluated_split"] is None:
        return Verdict("amber", "No file of a known class could be judged.")
    rows = {str(row["what"]): row for row in checks}
    if "accuracy of accepted" in rows:
        found = _judge_checks(rows, problems, copies)
    else:
        found = _judge_run(figures, problems)
    if (looser := looser_rule(figures)) is None:
        return found
    adjust = installed_commands("python -m learners.adjust")
    more = f"With {looser[0]} it answers {looser[1]} The command: {adjust} MODEL {looser[0]} --out adjusted"
    return found._replace(message=f"{found.message} {more}")


def label_verdict(figures: Mapping[str, Any], problems: Sequence[str]) -> Verdict:
    """Verdict of a multi-label model: red where a label's precision is lower than guaranteed.

    Parameters
    ----------
    figures : of `learners.evaluation.label_figures.all_label_figures`.
    problems : notices of the report; with any of them nothing is green.
    """
    name = str(figures["headline"]["split"])
    precision = figures["metrics"].get(f"{name}_map")
    if precision is None or precision != precision:
        return Verdict("amber", "No label could be judged.")
    part = part_name(name, is_cross_fitted(figures["metrics"], name))
    message = f"The mean average precision of the labels is {precision:.3f} on the {part} files"
    broken = [row["label"] for row in figures["labels"] if row["kept"] not in ("", "yes")]
    if broken:
        return Verdict(
            "red",
            f"{message}; {len(broken)} of {len(figures['labels'])} labels have a lower precision than "
            f"guaranteed: {', '.join(broken[:5])}.",
        )
    return noticed(f"{message}.", problems)


def _judge_run(figures: Mapping[str, Any], problems: Sequence[str]) -> Verdict:
    name = figures["headline"]["split"]
    counts, accuracy = counts_of(figures["metrics"], name), figures["splits"][name]["accuracy"]
    share = percent(accuracy["value"])
    named = f"{counts.named_right} of {counts.files} right ({share}){counts.unseen}"
    if counts.answered < ALMOST_NOTHING * counts.items:
        answered = f"{counts.answered} of {counts.files}"
        return Verdict("red", f"The model answers almost nothing, {answered}; it names {named}.")
    unknown, refused, taken = figures["unknown_classes"], "", 0
    if unknown is not None:
        n = unknown["items"]
        taken = round((unknown["accepted"]["value"] or 0) * n)
        refused = f" and for {n - taken} of {n} files of unknown classes"
    message = (
        f"The model names {named}. It answers {counts.answered} of {counts.files}; "
        f"{right_of_answered(counts.right, counts.answered)}. "
        f'It says "unknown" for the others{refused}.'
    )
    low = accuracy["low"]
    if low is not None and low < accuracy["value"] - WIDE:
        return Verdict(
            "amber",
            f"{message} So few independent files cannot tell how good it is (accuracy: "
            f"{with_limits(low, accuracy['high'])}); files of one group count together.",
        )
    if unknown is not None and taken > MANY_UNKNOWN * unknown["items"]:
        message += f" Use it with care where unknown classes occur: it answers {taken} of these."
        return Verdict("amber", message)
    return noticed(message, problems)


def noticed(message: str, problems: Sequence[str]) -> Verdict:
    """Green, or amber because of the notices, which the page has below the verdict."""
    if not problems:
        return Verdict("green", message)
    return Verdict("amber", f"{message} Use it with care: see the notices below.")


def _judge_checks(
    rows: Mapping[str, Mapping[str, Any]], problems: Sequence[str], copies: int
) -> Verdict:
    accepted, coverage = rows["accuracy of accepted"], rows.get("accepted", {})
    files, n = coverage.get("items", accepted["items"]), accepted["items"]
    if not n:
        return Verdict("red", f"Of no use here: it answers none of {files} files.")
    limits = f"{100 * accepted['low']:.1f}, {100 * accepted['high']:.1f}"
    right = right_of_answered(round(accepted["here"] * n), n)
    result = f"{right} ({percent(accepted['here'])} [{limits}])"
    expected = accepted["guaranteed"]
    if expected is not None and expected > accepted["high"]:
        return Verdict(
            "red", f"Do not rely on it here: {result}, and {percent(expected)} were expected."
        )
    wide = accepted["low"] < accepted["here"] - WIDE
    doubt = (
        (copies and f"{copies} of the files look like training files")
        or _doubt(rows)
        or (wide and "so few independent files cannot tell; files of one group count together")
        or (problems and "see the notices below")
    )
    if doubt:
        return Verdict("amber", f"Use it here with care: {result}, but {doubt}.")
    return Verdict("green", f"It holds here: {result}; it answers {n} of all {files} files.")


def _doubt(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """The first thing that differs from the calibration files beyond chance, here and there; "" if nothing does."""
    coverage = rows.get("accepted", {})
    if coverage.get("differs") == LOWER:
        share, before = percent(coverage["here"]), coverage["guaranteed"]
        return (
            f"it answers fewer files than expected, {share} (of the calibration files {percent(before)}). "
            "Fewer are usual on data from another source: to answer more, loosen its rule "
            f"({installed_commands('learners.adjust')}) or train "
            "it further with labelled files from here (finetune --from)"
        )
    outliers = rows.get("refused as out of distribution", {})
    if outliers.get("differs") == HIGHER:
        share = percent(outliers["here"])
        return f"{share} of the files are out of distribution ({percent(outliers['guaranteed'])} were expected)"
    if rows.get("temperature", {}).get("differs") == HIGHER:
        return "its probabilities are too high here"
    return ""


def estimate_verdict(
    expected: Mapping[str, Any], line: str, problems: Sequence[str], at_calibration: float | None
) -> Verdict:
    """Verdict of files without labels: green if the accuracy to expect is not below that ``at_calibration``."""
    value, high = expected["value"], expected["high"]
    message = f"{line[:1].upper()}{line[1:]}."
    if value is None or value != value:
        return Verdict("amber", message)
    if at_calibration is not None and high < at_calibration:
        return Verdict(
            "amber", f"{message} On the calibration files it was {percent(at_calibration)}."
        )
    return noticed(message, problems)
