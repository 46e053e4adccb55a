"""Says in words what is known of the items of a run: the one place where their facts become sentences."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from datasets.core.errors import Rejected, counted, one_line
from datasets.images.exif import GAP_MINUTES
from datasets.images.settings import PictureSettings, Stored
from datasets.items.checks import NOT_CORRECTED
from datasets.items.columns import is_rehearsed
from datasets.items.facts import Groups, Later, Lengths, NearDuplicates, Origin, Sessions
from datasets.items.items import Items
from datasets.items.labels import label_counts, parse_names
from datasets.items.settings import SplitSettings
from datasets.items.splits import SPLITS, are_named

#: Largest number of classes that the table of classes and splits lists by name.
LISTED = 12
#: What the items without a label are called where labels are counted.
NO_LABEL = "no label"
DOMAIN_SHIFT_NOTE = "expect lower accuracy at other sites"
#: A level of `logging`, and a line for the log.
Line = tuple[int, str]

log = logging.getLogger("datasets.items")


def log_lines(lines: Iterable[Line]) -> None:
    """Log lines at their levels."""
    for level, line in lines:
        log.log(level, "%s", line)


def near_duplicates(found: NearDuplicates) -> str:
    """How many near-duplicates there are, and which are not kept together."""
    if not found.together:
        text = "none found"
    else:
        clusters = counted(len(found.together), "cluster")
        text = f"{sum(found.together)} files in {clusters}, the largest of {max(found.together)}"
    return f"{text}; {_divided(found)}" if found.divided else text


def _divided(found: NearDuplicates) -> str:
    count, sizes = len(found.divided), ", ".join(map(str, found.divided[:5]))
    each = "each of " * (count > 1)
    return f"not kept together: {counted(count, 'cluster')} of {sizes} files, {each}which holds more than half of a class"


def near_duplicates_found(found: NearDuplicates) -> Iterator[Line]:
    """Lines for the log on near-duplicates."""
    if found.together:
        kept = near_duplicates(found._replace(divided=()))
        yield logging.INFO, f"Near-duplicates stay in one split: {kept}"
    if found.divided:
        yield (
            logging.WARNING,
            f"near-duplicates {_divided(found)}, so the figures may be too good. Name groups with --group-by, or add "
            "other files",
        )


def lengths(found: Lengths) -> str:
    """Which classes the lengths of clips tell apart."""
    names = ", ".join(f"{one_line(name)} ({seconds:.2g} s)" for name, seconds in found.classes[:5])
    more = f" and {len(found.classes) - 5} more" if len(found.classes) > 5 else ""
    return f"the length alone tells {names}{more} from clips of other classes ({found.median:.2g} s in the median of all)"


def lengths_found(found: Lengths) -> Iterator[Line]:
    """A line for the log where lengths of clips tell classes apart."""
    if found.classes:
        yield (
            logging.WARNING,
            f"lengths of clips: {lengths(found)}, so the model may learn how the clips were cut, and the figures may be too "
            "good. Cut all clips in the same way, or label spans of recordings",
        )


def pages_found(stored: Iterable[Stored | None]) -> Iterator[Line]:
    """A line for the log on pictures of several pages, of which none is chosen."""
    counts = [one.pages for one in stored if one is not None and one.pages > 1]
    if counts:
        most = f"up to {max(counts)} pages" if len({*counts}) > 1 else f"{counts[0]} pages"
        yield (
            logging.WARNING,
            f"{counted(len(counts), 'picture')} of {most}, of which the first page is used. Choose another with --page N, "
            "or the largest value of each pixel with --page max",
        )


def samples_found(
    settings: PictureSettings | None, how: str, stored: Iterable[Stored | None]
) -> Iterator[Line]:
    """Lines for the log on how pictures are drawn that are not of 8 bits."""
    deep = [one for one in stored if one is not None and one.deep]
    if settings is None or not deep:
        return
    level = logging.WARNING if how == "mixed" else logging.INFO
    yield (
        level,
        f"Pictures that are not of 8 bits ({len(deep)} in training): {drawn_samples(settings, how)}",
    )


#: How a range was found, by the word of `PictureSettings.infer`.
_FOUND = {
    "given": "as given", "stated": "as the files state", "bits": "all values of the camera",
    "quantiles": "all but 0.1 % of the training pixels at either end",
}  # fmt: skip


def drawn_samples(settings: PictureSettings, how: str = "") -> str:
    """Range, channels and page of pictures that are not of 8 bits, in words."""
    words = {
        "file": "each from its own 0.1 to its own 99.9 % quantile",
        "bits": "each from 0 to the largest value of its bits",
    }
    ranges = [
        f"{low:.6g} to {high:.6g}" for low, high in zip(settings.low, settings.high, strict=True)
    ]
    text = words.get(settings.range) or f"{', '.join(ranges)} from black to white"
    if how == "mixed":
        text += ", because some are floats and some integers. Give --range, or store all alike"
    elif found := _FOUND.get(how, "") if ranges else "":
        text += f" ({found})"
    if settings.channels is not None:
        text += f"; channels {', '.join(map(str, settings.channels))}"
    if settings.page is not None:
        text += (
            "; the maximum over all pages" if settings.page == "max" else f"; page {settings.page}"
        )
    return text


def sessions(found: Sessions) -> str:
    """How many photos are of capture sessions that are kept together, and of others."""
    texts = []
    if found.together:
        texts.append(_in_sessions(found.files, found.together))
    if found.divided:
        why = "a session holds more than half of a class"
        why = f"no split is possible ({found.error})" if found.error else why
        count = _in_sessions(found.files_apart, found.divided)
        texts.append(f"not kept together: {count}, because {why}, so the figures may be too good")
    return "; ".join(texts)


def _in_sessions(files: int, count: int) -> str:
    return f"{files} files in {counted(count, 'session')}"


def sessions_found(found: Sessions) -> Line:
    """A line for the log on capture sessions."""
    kept = "" if found.divided else " stay in one split"
    return (
        logging.WARNING if found.divided else logging.INFO,
        f"Capture sessions (photos that one camera took less than {GAP_MINUTES} minutes apart){kept}: {sessions(found)}",
    )


def summary(rejected: Sequence[Rejected]) -> list[str]:
    """Lines with the number of rejected files or parts of them, and the first ten with their reasons.

    Rows that `corrected_by_hand` leaves out do not count.
    """
    rejected = [item for item in rejected if item.reason != NOT_CORRECTED]
    lines = [f"{counted(len(rejected), 'item')} left out:"] if rejected else []
    lines += [f"  {item}" for item in rejected[:10]]
    if len(rejected) > 10:
        lines.append(f"  … and {len(rejected) - 10} more, all in rejected.csv")
    return lines


def overview(table: Items, windows: int) -> Iterator[Line]:
    """Lines for the log on the data: classes by splits, unknown classes, background, what was left out."""
    for line in described(table, windows):
        yield logging.INFO, line
    if table.multi_label:
        yield logging.DEBUG, f"items of each label: {label_counts(table.frame['label'])}"
    if (origin := table.get(Origin)) and origin.note:
        yield logging.INFO, origin.note
    if lines := summary(table.rejected):
        yield logging.WARNING, "\n".join(lines)


def described(table: Items, windows: int = 0) -> list[str]:
    """Lines of a small table of the items: a row for each class, or label, a column for each split.

    An item of several labels is in several rows, and only once in the last one.

    Parameters
    ----------
    windows : number of windows of the items; shown if there are more windows than items.
    """
    frame, extra = table.frame, []
    splits = [name for name in SPLITS if frame["split"].eq(name).any()]
    unit = "files" if frame["path"].is_unique else "items"
    cut_into = f", cut into {windows} windows" if windows > len(frame) else ""
    old = int(is_rehearsed(frame).sum())
    origin = f" ({len(frame) - old} new, {old} of the earlier run)" if old else ""
    thing = "label" if table.multi_label else "class"
    classes = f"{len(table.classes)} {'labels' if table.multi_label else 'classes'}{cut_into}"
    head = f"Data: {table.source}, {len(frame)} {unit}{origin} of {classes}"
    counts = split_counts(table)
    if len(table.classes) > LISTED:
        sizes = counts.loc[table.classes].sum(axis=1).sort_values(ascending=False, kind="stable")
        fewest = counted(int(sizes.iloc[-1]), unit.removesuffix("s"))
        extra.append(f"Smallest {thing}: {sizes.index[-1]}, {fewest}")
        counts = counts.iloc[:0]
    counts = counts.reindex(columns=splits, fill_value=0)
    counts.loc["all"] = [int(frame["split"].eq(name).sum()) for name in splits]
    counts[unit] = counts.sum(axis=1)
    counts = counts.rename(columns={"valid": "validation", "train": "training"})
    lines = counts.rename_axis(index=None, columns=None).to_string().splitlines()
    if len(table.unknown_items):
        extra.append(f"Unknown classes: {len(table.unknown_items)} {unit}, never trained on")
    if len(table.background):
        learnt = table.background["split"].eq("train").sum()
        extra.append(f"Background: {len(table.background)} {unit}, {learnt} of them for training")
    return [head, *(f"  {line}" for line in [*lines, *extra])]


def split_counts(table: Items) -> pd.DataFrame:
    """Numbers of items of each class, or label, in each split; the last row of several labels is `NO_LABEL`."""
    items = table.frame[["label", "split"]]
    if not table.multi_label:
        return pd.crosstab(items["label"], items["split"])
    names = items["label"].map(lambda label: parse_names(label) or [NO_LABEL])
    items = items.assign(label=names).explode("label")
    counts = pd.crosstab(items["label"], items["split"])
    return counts.reindex([*table.classes, NO_LABEL], fill_value=0)


def describe_protocol(table: Items, unsplit: pd.DataFrame, splits: SplitSettings) -> str:
    """Describe the evaluation protocol, as the text after "the figures rest on".

    Parameters
    ----------
    table : the table after the split.
    unsplit : its rows before the split.
    splits : the settings; ``cv`` without ``fold`` means all folds together.
    """
    old = is_rehearsed(unsplit)
    if old.any():
        if old.all():
            return "the splits of the earlier run"
        new = describe_protocol(table, unsplit.loc[~old], splits)
        return f"the splits of the earlier run, and for new items on {new}"
    frame, named_splits = table.frame, set(unsplit["split"]) - {""}
    if splits.cv is not None:
        folds = frame["fold"].loc[frame["fold"].ne("")].nunique()
        kind = "group" if str(splits.cv) == "group" else "fold"
        fold_text = (
            f"{kind} {splits.fold} of {folds}" if splits.fold is not None else f"{folds} {kind}s"
        )
        if kind == "group":
            each = "" if splits.fold is not None else "each "
            return f"{fold_text}, {each}left out of training"
        if str(splits.cv) == "fold":
            return f"{fold_text}, as named in the data"
        return random_protocol(table, f"{fold_text}, drawn at random")
    if later := table.get(Later):
        return random_protocol(
            table.knowing(Groups(0)),  # the same sites are recorded earlier and later
            f"files recorded after {later.learnt_until}; trained on files until then, tested on later ones",
        )
    if splits.fold is not None:
        folds = unsplit["fold"].loc[unsplit["fold"].ne("")].nunique()
        beside = " beside the data's own test split" if "test" in named_splits else ""
        return f"fold {splits.fold} of {folds}, as named in the data{beside}"
    if {"valid", "calibration"} & named_splits:
        return f"the splits that the data name ({', '.join(sorted(named_splits))})"
    if "test" in named_splits:
        return random_protocol(
            table, "the test split that the data name, and for the other files on a random split"
        )
    if (groups := group_count(table)) and are_named(frame["group"]).all():
        held_out = frame["group"].loc[frame["split"].ne("train")].nunique()
        by_group = f"groups that were not in training ({held_out} of {groups}), drawn at random"
        return random_protocol(table, by_group, by_group=True)
    return random_protocol(table, f"a random split of {len(table.classes)} classes")


def group_count(table: Items) -> int:
    """Number of groups that the data or ``--group-by`` name."""
    return (table.get(Groups) or Groups()).number


def divided_groups(frame: pd.DataFrame) -> str:
    """Names of the groups in two splits, which are validation and calibration; "" for none."""
    named = frame.loc[are_named(frame["group"])]
    splits = named.groupby("group")["split"].nunique()
    names = [one_line(name) for name in splits.index[splits > 1]]
    return ", ".join([*names[:5], *(["…"] if len(names) > 5 else [])])


def random_protocol(table: Items, protocol: str, *, by_group: bool = False) -> str:
    """Describe a random split: what was kept together, and a note on domain shift if there are no groups."""
    texts, groups = [protocol], group_count(table)
    shared = divided_groups(table.frame) if groups else ""
    if groups and not by_group:
        exception = f", except {shared}, which validation and calibration share" if shared else ""
        texts.append(f"each of {groups} groups stays in one split{exception}")
    elif shared:
        texts.append(f"validation and calibration share {shared}")
    if (found := table.get(NearDuplicates)) and (found.together or found.divided):
        kept = " kept together" if found.together else ""
        texts.append(f"near-duplicates{kept}: {near_duplicates(found)}")
    if in_sessions := table.get(Sessions):
        kept = " kept together" if in_sessions.together else ""
        texts.append(f"capture sessions{kept}: {sessions(in_sessions)}")
    return "; ".join([*texts, *([] if groups else [DOMAIN_SHIFT_NOTE])])


def trained_settings(trained: Mapping[str, Any], chosen: Mapping[str, Any]) -> Iterator[Line]:
    """Lines on the spectrogram settings of a backbone's training, some of which the user may have ``chosen`` otherwise."""
    adopted = ", ".join(f"{name} {value}" for name, value in trained.items() if name not in chosen)
    yield logging.DEBUG, f"spectrogram settings of the backbone's training: {adopted}"
    changed = [
        f"{name} {chosen[name]} instead of {value}"
        for name, value in trained.items()
        if name in chosen
    ]
    if changed:
        yield (
            logging.WARNING,
            f"spectrogram settings differ from the backbone's training: {', '.join(changed)}. Leave them out to use "
            "those of the backbone",
        )
