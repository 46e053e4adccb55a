"""The sections of a report, each from its figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from datasets.drawings import source_of
from learners.evaluation import LOW, Evaluation, Judged
from learners.model import Bundle
from learners.report import page as _page
from learners.report import plots as _plots
from learners.report.galleries import Pictures

Figures = Mapping[str, Any]
FITTING = 12  # classes whose confusion matrix fits on a phone; a larger one is scrolled
CALIBRATION = {"nll": "NLL", "brier": "Brier", "ece": "ECE", "classwise_ece": "classwise ECE"}


def headline(found: Figures) -> list[tuple[str, str, str]]:
    """The figures that stand on top, each with its limits."""
    main, strange = found["judged_on"], found["strangers"]
    entries = []
    if main is not None:
        split = found["splits"][main]
        entries = [
            (f"accuracy, {main}", *_rate(split["accuracy"])),
            ("accepted", *_rate(split["coverage"])),
            ("accuracy of accepted", *_rate(split["accuracy_of_accepted"])),
        ]
        if split["calibration"]["after"]:
            entries.append(("calibration error", *_estimate(split["calibration"]["after"]["ece"])))
    if strange is not None:
        entries.append(("strangers accepted", *_rate(strange["accepted"])))
        own = strange["scores"][0]
        if own["auroc"] is not None:
            value = {"value": own["auroc"], "low": own["low"], "high": own["high"]}
            entries.append(("known from strangers, AUROC", *_estimate(value)))
    for name, split in found["splits"].items():
        if name != main:
            entries.append((f"accuracy, {name}", *_rate(split["accuracy"])))
    return entries


def classes(known: pd.DataFrame, table: Sequence[Figures], names: Sequence[str]) -> str:
    """The confusion matrix, and each class's precision, recall and F1."""
    from sklearn.metrics import confusion_matrix

    judged = known.loc[known["truth"].isin(names) & known["best"].isin(names)]
    if judged.empty:
        return ""
    matrix = confusion_matrix(judged["truth"], judged["best"], labels=list(names))
    rows = pd.DataFrame(list(table)).rename(columns={"f1": "F1"})
    pairs = [
        (names[t], names[b], int(matrix[t, b]))
        for t, b in zip(*np.nonzero(matrix), strict=True)
        if t != b
    ]
    often = pd.DataFrame(
        sorted(pairs, key=lambda pair: -pair[2])[:10], columns=["label", "answered", "times"]
    )
    confused = "" if often.empty else f"<div><h3>Most often confused</h3>{_page.table(often)}</div>"
    kind = "plots" if len(names) <= FITTING else "wide"
    return (
        f"<p>All {len(judged)} held-out files that could be judged; thresholds play no part.</p>"
        f'<div class="{kind}">{_plots.confusion(matrix, names)}</div><div class="beside">'
        f"<div><h3>Each class</h3>{_page.table(rows)}</div>{confused}</div>"
    )


def calibration(found: Figures, bundle: Bundle) -> str:
    """Reliability before and after, and the figures of every split."""
    both = found["reliability"]
    if both is None:
        return ""
    main = found["judged_on"]
    drawn = []
    for when in ("before", "after"):
        ece = found["splits"][main]["calibration"][when]["ece"]["value"]
        drawn.append(_plots.reliability(both[when], when, ece))
    rows = []
    for name, split in found["splits"].items():
        for when in ("before", "after"):
            if measured := split["calibration"][when]:
                row = {"split": name, "temperature": when}
                for key, shown in CALIBRATION.items():
                    row[shown] = " ".join(_estimate(measured[key]))
                rows.append(row | {"by chance": f"{measured['ece_by_chance']:.3f}"})
    said = "The model is not calibrated. "
    if bundle.confidence is not None:
        fitted = bundle.confidence.temperature
        said = (
            f"Temperature {fitted.value:.2f} [{fitted.low:.2f}, {fitted.high:.2f}], "
            f"fitted on {fitted.n} items of the calibration split. "
        )
    said += (
        f"The diagrams show the split {main}: accuracy against confidence in 15 bins of equal "
        "numbers of items. By chance is the ECE that a perfectly calibrated model would show on as many."
    )
    return f"<p>{_page.text(said)}</p>{_page.plots(drawn)}{_page.table(pd.DataFrame(rows))}"


def refusal(found: Figures, bundle: Bundle) -> str:
    """The risk-coverage curve and where the model was cut; coverage of every split."""
    curve = found["risk_coverage"]
    if curve is None:
        return ""
    confidence = bundle.confidence
    said = f"Area under the curve (AURC) {curve['aurc']:.4f} on the split {found['judged_on']}. "
    if confidence is not None:
        on = confidence.threshold_on.replace("-", " ")
        named = "calibrated probability" if on == "probability" else f"score {on}"
        said += f"The model accepts from {confidence.threshold.value:.4g} of the {named}"
        if confidence.reference is not None and confidence.alpha > 0:
            said += (
                f", and refuses what is farther from its training items than all but "
                f"{100 * confidence.alpha:.3g} % of the calibration items"
            )
        said += "; the dot is what came of it."
    rows = [
        {
            "split": name,
            "items": split["items"],
            "accuracy": " ".join(_rate(split["accuracy"])),
            "accepted": " ".join(_rate(split["coverage"])),
            "accuracy of accepted": " ".join(_rate(split["accuracy_of_accepted"])),
            "AURC": split["aurc"],
        }
        for name, split in found["splits"].items()
    ]
    plot = _page.plots([_plots.risk_coverage(curve)])
    return f"<p>{_page.text(said)}</p>{plot}{_page.table(pd.DataFrame(rows))}"


def strangers(found: Figures) -> str:
    """How far the model's score sets strangers apart."""
    strange = found["strangers"]
    if strange is None:
        return ""
    value, limits = _rate(strange["accepted"])
    said = (
        f"{strange['items']} files of things that the model was never shown; it accepted {value} "
        f"{limits} of them. Below, its score for them and for the split {found['judged_on']}."
    )
    names = {"low": "from", "high": "to", "fpr95": "FPR95", "auroc": "AUROC", "oscr": "OSCR"}
    names |= {"name": "score", "accepted_at_half": "accepted at half"}
    table = pd.DataFrame(strange["scores"]).rename(columns=names)
    plot = _page.plots([_plots.histogram(strange["histogram"], strange["score"])])
    below = (
        "FPR95: strangers accepted where 95 % of the known are. Accepted at half: where half of the "
        "known are. OSCR: area under the known that are accepted and right, against strangers accepted."
    )
    return (
        f"<p>{_page.text(said)}</p>{plot}{_page.table(table)}"
        f'<p class="soft">{_page.text(below)}</p>'
    )


def mistakes(
    pictures: Pictures, evaluation: Evaluation, judged: Judged, wrong: pd.DataFrame, shown: int
) -> str:
    """The surest mistakes, then the worst of the others, as pictures with heat maps."""
    if wrong.empty:
        return "<p>None.</p>"
    numbers = {name: i for i, name in enumerate(pictures.predictor.classes)}
    own = np.full(len(evaluation.predictions), np.nan)
    has = judged.labels >= 0
    own[judged.rows[has]] = judged.after[has, judged.labels[has]]
    places = pd.Series(range(len(evaluation.predictions)), index=evaluation.predictions.index)
    wrong = wrong.assign(own=own[places.loc[wrong.index].to_numpy()])
    surest = wrong.sort_values("probability", ascending=False, kind="stable").head(shown)
    worst = wrong.drop(index=surest.index).sort_values("own", kind="stable").head(shown)

    def shot(row: Any) -> str:
        taken = "accepted" if row["label"] == row["best"] else "refused"
        said = f"{row['best']} ({100 * row['probability']:.0f} %, {taken}) · is {row['truth']}"
        if row["own"] == row["own"]:
            said += f" ({100 * row['own']:.0f} %)"
        return pictures.figure(source_of(row), said, numbers[row["best"]])

    first = _page.gallery([shot(row) for row in surest.to_dict("records")])
    rest = _page.gallery([shot(row) for row in worst.to_dict("records")])
    said = "What was answered, how sure, and what the file is labelled. "
    said += (
        f"No heat maps: {pictures.no_map}."
        if pictures.no_map
        else "On the right the network's input, bright where it looked for its answer (Grad-CAM)."
    )
    body = f"<p>{_page.text(said)}</p><h3>The surest</h3>{first}"
    if len(worst):
        body += f"<h3>The worst of the others: their label is thought least likely</h3>{rest}"
    return body


def label_gallery(
    pictures: Pictures, suspects: pd.DataFrame, evaluation: Evaluation, shown: int
) -> str:
    """Items whose label may be wrong."""
    said = (
        "Held-out files whose own label has at most "
        f"{100 * LOW:.0f} % and another class as much as is usual for its own files (confident "
        "learning, arXiv 1911.00068). Only held-out files are looked at: what a network was trained "
        "on, it has learnt, mistakes and all. Whether the label or the network errs, a person decides."
    )
    if suspects.empty:
        return f"<p>None. {_page.text(said)}</p>"
    drawn = []
    for row in suspects.head(shown).to_dict("records"):
        words = f"labelled {row['truth']}; {row['suggested']}? {100 * row['suggested_probability']:.0f} %"
        drawn.append(pictures.figure(source_of(evaluation.predictions.iloc[row["row"]]), words))
    return f"<p>{_page.text(said)}</p>{_page.gallery(drawn)}"


def twin_gallery(
    pictures: Pictures,
    twins: pd.DataFrame | None,
    evaluation: Evaluation,
    same: int,
    shown: int,
) -> str:
    """Held-out items beside the training items that they look like."""
    if twins is None:
        if not same:
            return ""
        return (
            f"<p>{same} files are copies of training files as far as the network can tell. The model "
            "folder holds no names of its training files, so which ones is not known; report.json "
            "lists the copies.</p>"
        )
    said = (
        "Held-out files that look like a training file: copies in another encoding, bursts. They "
        "make the figures look better than they are; a group (--group-by) keeps such files together. "
    )
    if twins.empty:
        return f"<p>None found. {_page.text(said)}</p>"
    drawn = []
    for twin in twins.head(shown).to_dict("records"):
        held = evaluation.predictions.iloc[twin["row"]]
        times = {name: twin[f"train_{name}"] for name in ("start", "end", "gps")}
        trained = source_of({"path": twin["train_path"], **times})
        words = f"{held['split']}: {held['truth']} · train: {twin['train_label']}"
        words += f" · likeness {twin['correlation']:.3f}"
        drawn.append(
            pictures.pair(
                [source_of(held), trained], words,
                [f"held out: {held['truth']}", f"in training: {twin['train_label']}"],
            )
        )  # fmt: skip
    count = f"{len(twins)} found{f', the {shown} likest shown' if len(twins) > shown else ''}. "
    return f"<p>{_page.text(count + said)}</p>{_page.gallery(drawn)}"


def _rate(value: Figures) -> tuple[str, str]:
    if value["value"] is None:
        return "none", ""
    return (
        f"{100 * value['value']:.1f} %",
        f"[{100 * value['low']:.1f}, {100 * value['high']:.1f}]",
    )


def _estimate(value: Figures) -> tuple[str, str]:
    return f"{value['value']:.3f}", f"[{value['low']:.3f}, {value['high']:.3f}]"
