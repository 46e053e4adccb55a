"""The result of a run in sentences with counts, in a box on a terminal, and the commands to run next."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from datasets.core.errors import counted, printable
from datasets.core.program import uncleaned

if TYPE_CHECKING:
    from learners.rule.operating_points import OperatingPoint, OperatingPoints

#: Share of the files up to which a model "answers almost nothing".
ALMOST_NOTHING = 0.1
#: Calibration files below which the limits of an accuracy span a third of it or more.
FEW = 20
#: Calibration files from which probabilities can be corrected, as `learners.rule` has it.
ENOUGH = 100
#: The 95 % limits of `MANY` independent files are never `WIDE`; those of as many in ten folds are wider by up to `FOLDED`.
MANY, WIDE, FOLDED = 50, 0.3, 0.05
#: Below this number of groups, files of further groups help more than files of these.
FEW_GROUPS = 10
#: Largest number of labels that have a line each.
LISTED = 12
#: Parts in the order in which their figures are reported, as `learners.evaluation.figures.headline` has them.
PARTS = ("test", "calibration", "valid")


#: Metric of a cross-fitted model: the number of its folds. Its calibration files are all files, each of which is measured
#: by a head that had not seen it.
CROSS_FIT = "cross_fit_folds"
#: Metric of a cross-fitted model: whether its body has learnt from files, which are not measured then.
TAUGHT_BODY = "cross_fit_body"
#: Metric of a model: whether each fold has a body of its own, which has not seen it. Without folds the run was ended by
#: Ctrl-C, and one of these bodies is the model.
BY_BODIES = "cross_fit_bodies"
OUT_OF_FOLD = "out-of-fold"
UNSEEN = "each by a head that had not seen it"
UNSEEN_BY_BODY = "each by a body that had not seen it"


@dataclass(frozen=True)
class Result:
    """The result of a run, as values.

    Attributes
    ----------
    metrics, confusions, protocol, groups : as in `sentences`.
    notices : what else was measured, as sentences.
    files : number of all labelled files of the run.
    uncalibrated : classes without a calibration file.
    labels : of a multi-label model, as in `sentences`.
    """

    metrics: dict[str, Any]
    confusions: tuple[tuple[str, str, int], ...]
    protocol: str
    groups: int
    notices: tuple[str, ...]
    files: int
    uncalibrated: tuple[str, ...]
    labels: tuple[tuple[str, int, int, int], ...] = ()

    @property
    def sentences(self) -> list[str]:
        """The result, and what few files do not show."""
        lines = sentences(
            self.metrics,
            self.confusions,
            self.protocol,
            groups=self.groups,
            more=self.notices,
            labels=self.labels,
        )
        return lines + small_data(self.metrics, self.files, self.uncalibrated)

    @property
    def is_warning(self) -> bool:
        """Whether it answers almost nothing, or rests on too few files to say how sure it is."""
        small = small_data(self.metrics, self.files, self.uncalibrated)
        return bool(small) or answers_almost_nothing(self.metrics)


def part_name(split: str, cross_fitted: bool = False) -> str:
    """Name of a split in a sentence; the calibration files of a cross-fitted model are all files."""
    if cross_fitted and split == "calibration":
        return OUT_OF_FOLD
    return "validation" if split == "valid" else split


class Counts(NamedTuple):
    """How many files of one part are named right (by the most probable class) and answered."""

    part: str
    items: int
    named_right: int
    answered: int
    right: int  # of the answered
    cross_fitted: bool = False
    judge: str = "head"

    @property
    def files(self) -> str:
        """What the counts are of."""
        kind = "" if self.cross_fitted else f"{part_name(self.part)} "
        return f"{self.items} {kind}files"

    @property
    def unseen(self) -> str:
        """By what each file of a cross-fitted model is judged, as ", each by …"; else ""."""
        return f", {unseen_by(self.judge)}" if self.cross_fitted else ""


def counts_of(metrics: Mapping[str, Any], part: str) -> Counts:
    """The counts behind the shares that `learners.evaluation.figures.measure` has of a part."""
    items = int(metrics[f"{part}_items"])
    answered = round(metrics[f"{part}_coverage"] * items)
    right = round((metrics.get(f"{part}_accuracy_of_accepted") or 0.0) * answered)
    named = round(metrics[f"{part}_accuracy"] * items)
    cross_fitted = is_cross_fitted(metrics, part)
    return Counts(part, items, named, answered, right, cross_fitted, judge(metrics))


def judge(metrics: Mapping[str, Any]) -> str:
    """What has not seen the files of a cross-fitted model that it judges: "body" or "head"."""
    return "body" if metrics.get(BY_BODIES) else "head"


def unseen_by(judge: str) -> str:
    """By what each file is judged, as the end of a sentence."""
    return UNSEEN_BY_BODY if judge == "body" else UNSEEN


def is_cross_fitted(metrics: Mapping[str, Any], part: str) -> bool:
    """Whether the files of a part also taught the model, and each was measured by what had not seen it."""
    return part == "calibration" and bool(metrics.get(CROSS_FIT))


def right_of_answered(right: int, answered: int) -> str:
    """The end of a sentence on answers. Its denominator is never that of the files."""
    return f"{right} of {counted(answered, 'answered file')} {'is' if right == 1 else 'are'} right"


def denominator(metrics: Mapping[str, Any], name: str) -> str:
    """What the share ``name`` of the metrics of a model is of; "" if it is not a share of files."""
    part, _, figure = name.partition("_")
    if (items := metrics.get(f"{part}_items")) is None:
        return ""
    if figure == "accuracy_of_accepted":
        return counted(counts_of(metrics, part).answered, "answered file")
    if part in ("unknown", "background"):
        kind = "of unknown classes" if part == "unknown" else "of the background"
        return f"{counted(items, 'file')} {kind}"
    if figure in ("accuracy", "coverage"):
        of_fold = f"{items} files, {unseen_by(judge(metrics))}"
        return of_fold if is_cross_fitted(metrics, part) else f"{items} {part_name(part)} files"
    return ""


def part_with(metrics: Mapping[str, Any], figure: str) -> str | None:
    """The first of `PARTS` that has this figure."""
    return next((part for part in PARTS if metrics.get(f"{part}_{figure}") is not None), None)


def sentences(
    metrics: Mapping[str, Any],
    confusions: Sequence[tuple[str, str, int]] = (),
    protocol: str = "",
    *,
    what: str = "",
    groups: int = 0,
    more: Sequence[str] = (),
    labels: Sequence[tuple[str, int, int, int]] = (),
) -> list[str]:
    """The result on one part of the files: how many are right, answered and refused.

    Parameters
    ----------
    metrics : of `learners.evaluation.figures.measure`, or of a multi-label model.
    confusions : true class, named class, number of files; the most frequent first.
    protocol : the evaluation protocol of an item table, clauses joined by "; ".
    what : name of the files, if not that of their part, such as "calibration files".
    groups : number of groups that the files are split by; 0 for a split by file.
    more : what else was measured, before the protocol.
    labels : of a multi-label model, of `label_counts`.
    """
    if (part := part_with(metrics, "items")) is None:
        return []
    files = what or f"{part_name(part)} files"
    items = int(metrics[f"{part}_items"])
    if f"{part}_accuracy" in metrics:
        lines = _single(metrics, part, items, files, groups)
    else:
        lines = [*_multi_label(metrics, part, items, files), *_each_label(labels)]
    low, high = metrics.get(f"{part}_accuracy_interval") or (0.0, 0.0)
    if items >= MANY and high - low > WIDE + FOLDED * is_cross_fitted(metrics, part):
        lines.append("The limits are wide because files of one group count together.")
    if confusions:
        pairs = ", ".join(f"{truth} as {named} ({count})" for truth, named, count in confusions)
        lines.append(f"Mixed up most often: {pairs}.")
    lines += more
    if protocol:
        first, *others = protocol.split("; ")
        clauses = [f"Measured on {first}.", *(f"{text[:1].upper()}{text[1:]}." for text in others)]
        lines.append(" ".join(clauses))
    return lines


def small_data(metrics: Mapping[str, Any], files: int, uncalibrated: Sequence[str]) -> list[str]:
    """What few files do not show.

    Parameters
    ----------
    files : number of all labelled files of a run.
    uncalibrated : classes without a calibration file.
    """
    lines, n = [], int(metrics.get("calibration_items") or 0)
    if n < ENOUGH:
        hardly = (
            "how good the model is, nor how sure it may be" if n < FEW else "how sure it may be"
        )
        few = f"{counted(n, 'calibration file')} of {files} files in all"
        rest = ", which is what a run sets aside of about 670 files"
        if is_cross_fitted(metrics, "calibration"):
            few, rest = counted(n, "file"), ""
        lines.append(f"{few}: too few to show {hardly}. {ENOUGH} are needed{rest}.")
    if uncalibrated:
        others = f" and {len(uncalibrated) - 5} more" if uncalibrated[5:] else ""
        lines.append(
            f"No calibration file of {', '.join(uncalibrated[:5])}{others}: nothing shows how good these answers are. "
            "Add files of these classes."
        )
    return lines


def looser_rule(metrics: Mapping[str, Any]) -> tuple[str, str] | None:
    """The flag of a rule that answers more files, and what it answers, if the model answers fewer than half."""
    from learners.rule.operating_points import OperatingPoints

    table = OperatingPoints.read(metrics)
    if table is None or (point := table.offered) is None:
        return None
    return point.rule, answers_at(table, point)


def answers_at(table: OperatingPoints, point: OperatingPoint) -> str:
    """What a model answers at one of its operating points."""
    text = f"{point.answered} of {table.items} {part_name(table.split, table.cross_fitted)} files"
    if point.answered:
        right = right_of_answered(point.right, point.answered)
        text += f"; {right} ({with_limits(point.low, point.high)})"
    if table.unknown_items:
        text += f"; {point.unknown} of {table.unknown_items} files of unknown classes"
    return f"{text}."


def answers_almost_nothing(metrics: Mapping[str, Any]) -> bool:
    """Whether the model refuses nearly all files of the part that is reported."""
    part = part_with(metrics, "coverage")
    return part is not None and metrics[f"{part}_coverage"] <= ALMOST_NOTHING


def _single(
    metrics: Mapping[str, Any], part: str, items: int, files: str, groups: int
) -> list[str]:
    counts = counts_of(metrics, part)
    accuracy = _limits(metrics, f"{part}_accuracy")
    if counts.cross_fitted:
        files = "files"
    lines = [f"Named right: {counts.named_right} of {items} {files}{counts.unseen} ({accuracy})."]
    if counts.answered:
        limits = _limits(metrics, f"{part}_accuracy_of_accepted")
        right = right_of_answered(counts.right, counts.answered)
        lines.append(f"Answers {counts.answered} of {items} {files}; {right} ({limits}).")
    unknown = _unknown(metrics, "accepted")
    lines.append(f"Refuses {items - counts.answered} of {items} {files}{unknown}.")
    looser = looser_rule(metrics)
    if looser:
        lines.append(f"That is fewer than half. With {looser[0]} it answers {looser[1]}")
    if not answers_almost_nothing(metrics):
        return lines
    learnt = int(metrics.get("calibration_items", items))
    kind = "" if is_cross_fitted(metrics, "calibration") else "calibration "
    if 0 < groups < FEW_GROUPS:
        remedy = f"Only {groups} groups: files of further groups help, more files of these do not."
    elif learnt < ENOUGH:
        remedy = (
            f"It has only {learnt} {kind}files to learn when it can be trusted, and needs about {ENOUGH}. Add "
            "files to every class and train again."
        )
    elif looser:
        remedy = "A looser rule answers more: see below."
    else:
        remedy = "No lower threshold is accurate enough: add files, or ask for less with --target-accuracy."
    return [f"This model will answer almost nothing: it says 'unknown'. {remedy}", *lines]


def _multi_label(metrics: Mapping[str, Any], part: str, items: int, files: str) -> list[str]:
    lines, unseen = [], ""
    if is_cross_fitted(metrics, part):
        files, unseen = "files", f", {UNSEEN}"
    if (value := metrics.get(f"{part}_map")) is not None:
        lines.append(f"Mean average precision {value:.3f} on {items} {files}{unseen}.")
    if (named := metrics.get(f"{part}_coverage")) is not None:
        unknown = _unknown(metrics, "answered", "names labels in")
        lines.append(f"Names labels in {round(named * items)} of {items} {files}{unknown}.")
    for name, meaning in (
        ("precision", "of the labels named are right (precision)"),
        ("recall", "of the labels present are named (recall)"),
    ):
        if metrics.get(f"{part}_{name}") is not None:
            lines.append(f"{percent(metrics[f'{part}_{name}'])} {meaning}.")
    return lines


def _each_label(labels: Sequence[tuple[str, int, int, int]]) -> list[str]:
    """A line for each label; of many those with the most mistakes."""
    listed = [*labels]
    if len(labels) > LISTED:
        listed.sort(key=lambda one: one[2] - one[1] + one[2] - one[3])
    lines = [
        f"{name}: in {counted(present, 'file')}, found in {found}, missed in {present - found}; named wrongly in "
        f"{named - found}."
        for name, present, found, named in listed[:LISTED]
    ]
    if rest := listed[LISTED:]:
        lines.append(f"The report has the other {counted(len(rest), 'label')}.")
    return lines


def _unknown(metrics: Mapping[str, Any], accepted: str, verb: str = "") -> str:
    """The end of a sentence on files of unknown classes and of a background; "" without any."""
    words = []
    for name, meaning in (("unknown", "of unknown classes"), ("background", "of the background")):
        items, value = metrics.get(f"{name}_items"), metrics.get(f"{name}_{accepted}")
        if items and value is not None:
            count = round(value * items)
            named = f"{verb} {count}" if verb else f"{items - count}"
            words.append(f"{named} of {items} files {meaning}")
    return "".join(f", and {word}" for word in words)


def percent(share: float) -> str:
    """Whole percent; 100 % stands for all and 0 % for none, so shares near them have a decimal, such as 99.7 %."""
    value = 100 * share
    if 0 < value <= 0.5 or 99.5 <= value < 100:
        return f"{min(max(value, 0.1), 99.9):.1f} %"
    return f"{value:.0f} %"


def _limits(metrics: Mapping[str, Any], name: str) -> str:
    """ "95 %; 95 % limits 91 to 98 %"."""
    text = percent(metrics[name])
    low, high = metrics.get(f"{name}_interval") or (None, None)
    if low is None or high is None:
        return text
    return f"{text}, {with_limits(low, high)}"


def with_limits(low: float, high: float) -> str:
    """ "95 % limits 91 to 98 %", or that the files are too few to say."""
    from learners.rule.operating_points import TELLING, limits_text

    return f"{'' if high - low > TELLING else '95 % limits '}{limits_text(low, high)}"


def next_commands(
    metrics: Mapping[str, Any], predict: str, adjust: str, report: object
) -> list[str]:
    """Three lines: the report, the command that predicts, and the one that lists rules that answer more files."""
    part = part_with(metrics, "coverage")
    lines = [f"Look at the report:  {report}", f"Predict:             {predict} FILE..."]
    if part is not None and metrics[f"{part}_coverage"] < 1 and f"{part}_accuracy" in metrics:
        looser = looser_rule(metrics)
        chosen = f" {looser[0]} --out adjusted" if looser else ""
        lines.append(f"Answer more files:   {adjust}{chosen}")
    return lines


def find_confusions(predictions: Any, metrics: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """True class, named class and number of files of the three most frequent confusions of the part that is reported.

    ``predictions`` is a table with the columns truth, best and split. Nothing of a multi-label model.
    """
    if (part := part_with(metrics, "accuracy")) is None:
        return []
    return most_confused(predictions.loc[predictions["split"].eq(part)], 3)


def label_counts(figures: Mapping[str, Any]) -> list[tuple[str, int, int, int]]:
    """Of each label its name and the number of files that have it, in which it is found, and in which it is named.

    ``figures`` : of `learners.evaluation.label_figures`; others have no labels.
    """
    rows = figures.get("labels", ())
    return [(row["label"], row["positives"], row["found"], row["predicted"]) for row in rows]


def most_confused(rows: Any, most: int) -> list[tuple[str, str, int]]:
    """True class, named class and number of files of the most frequent confusions among ``rows`` of predictions."""
    wrong = rows.loc[rows["best"].ne("") & rows["best"].ne(rows["truth"])]
    counts = wrong.groupby(["truth", "best"]).size().sort_values(ascending=False, kind="stable")
    return [(str(truth), str(best), int(n)) for (truth, best), n in counts.head(most).items()]


def wrapped(sentence: str, width: int) -> str:
    """The sentence in lines of at most ``width`` characters, none of which ends between a number and its "%"."""
    lines = textwrap.wrap(
        sentence.replace(" %", "\u00a0%"), max(width, 1), break_long_words=False, break_on_hyphens=False
    )  # fmt: skip
    return "\n".join(lines).replace("\u00a0%", " %")


def print_result(lines: Sequence[str], title: str = "Result", *, alarm: bool = False) -> None:
    """The sentences in a box on a terminal, red where there is an ``alarm``; plain lines in a pipe."""
    if not sys.stdout.isatty():
        print(*lines, sep="\n")
        return
    from rich.console import Console
    from rich.panel import Panel
    from rich.text import Text

    console = Console(file=uncleaned(sys.stdout), highlight=False)
    width = min(console.width, 100)
    text = Text("\n").join(
        Text(wrapped(printable(line), width - 4), style="bold red" if alarm and not number else "")
        for number, line in enumerate(lines)
    )
    style = "red" if alarm else "green"
    console.print(Panel(text, title=title, border_style=style, width=width, title_align="left"))
