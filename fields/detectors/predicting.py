"""Predicts the triggers of a table from the strain around them, and adds the predictions to the table."""

from __future__ import annotations

import sys
from collections import defaultdict
from typing import Any

import numpy as np
import pandas as pd

from datasets.core import progress
from datasets.core.errors import Rejected
from datasets.core.part import Part
from datasets.items.labels import UNKNOWN
from datasets.strain.frames import Frames, parse_series, read_frames
from fields.detectors.sections import StrainSettings
from fields.detectors.trigger_tables import (
    Triggers,
    check_table,
    find_strain_files,
    read_triggers,
    write_table,
)
from learners.cli.commands import PredictSettings
from learners.inference.predictions import cell
from learners.inference.predictor import Predictor
from learners.predictions.provenance import Provenance, check_record

#: Added columns: best class and its probability (Gravity Spy's names), label or "unknown", the reason, and seconds from
#: the trigger to the loudest tile.
ADDED = ("ml_label", "ml_confidence", "label", "reason", "offset")


def predict_triggers(
    predictor: Predictor, settings: PredictSettings, provenance: Provenance
) -> int:
    """Predict the triggers of ``--triggers``; write the table to ``--out`` or standard output.

    Returns the exit status: 0, or 3 if some triggers could not be predicted.
    """
    if settings.out is not None:
        check_table(settings.out, overwrite=settings.overwrite)
        check_record(settings.out, overwrite=settings.overwrite)
    given = settings.of(StrainSettings)
    assert given.triggers is not None
    assert given.strain is not None
    triggers, frames = read_triggers(given.triggers), read_frames(given.strain)
    for file in frames.rejected:
        print(file, file=sys.stderr)
    table, bad = _predict(predictor, triggers, frames, settings)
    write_table(table, settings.out or sys.stdout)
    if settings.out is not None:
        answered = int(table["label"].ne(UNKNOWN).sum())
        counts = {"triggers": len(table), "answered": answered, "not predicted": len(bad)}
        provenance.write(settings.out, counts)
    for row in bad:
        print(row, file=sys.stderr)
    if bad:
        print(f"{len(bad)} of {len(table)} triggers could not be predicted", file=sys.stderr)
    return 3 if bad else 0


def _predict(
    predictor: Predictor, triggers: Triggers, frames: Frames, settings: PredictSettings
) -> tuple[pd.DataFrame, list[Rejected]]:
    """Return the table with the columns `ADDED`, and the rows that could not be predicted.

    With ``--top`` there is a column of the most probable classes, with ``--scores`` one for each class. Columns with one
    of these names are renamed ``given_…``. Triggers are predicted in the order of files and times, so that each file is
    read once; duplicates are predicted once.
    """
    rows: dict[tuple[str, float], list[int]] = defaultdict(list)
    count = len(triggers.cells)
    predicted = np.full(count, None, dtype=object)
    reasons = np.full(count, "", dtype=object)
    given, spectrogram = settings.of(StrainSettings), predictor.spectrogram
    assert spectrogram is not None
    places = find_strain_files(
        triggers, frames, channel=given.channel or "", context=spectrogram.context
    )
    for row, place in enumerate(places):
        if isinstance(place, Rejected):
            reasons[row] = place.reason
        else:
            rows[place, float(triggers.gps[row])].append(row)
    moments = sorted(rows, key=lambda moment: (parse_series(moment[0]), moment[1]))
    parts = (Part(path, at=gps) for path, gps in moments)
    predictions = predictor.predict(parts)
    counted = progress.counted(predictions, "Predicting", len(moments), "triggers")
    for moment, prediction in zip(moments, counted, strict=True):
        for row in rows[moment]:
            reasons[row] = str(prediction.reason)
            if not prediction.reason.failed:
                predicted[row] = prediction
    is_predicted = np.array([one is not None for one in predicted], dtype=bool)
    added: dict[str, Any] = {
        "ml_label": ["" if one is None else one.best for one in predicted],
        "ml_confidence": [
            np.nan if one is None else round(one.probability, 6) for one in predicted
        ],
        "label": [UNKNOWN if one is None else one.label for one in predicted],
        "reason": reasons,
        "offset": [np.nan if one is None else round(one.offset, 6) for one in predicted],
    }
    if settings.top is not None:
        tops = ([] if one is None else one.top[: settings.top] for one in predicted)
        added["top"] = [cell(top, "top") for top in tops]
    if given.scores:
        scores = [{} if one is None else dict(one.top) for one in predicted]
        added |= {
            name: [round(of_row.get(name, np.nan), 6) for of_row in scores]
            for name in predictor.classes
        }
    taken = {name.lower() for name in added}
    new_names: dict[str, str] = {}
    for name in triggers.cells.columns:
        new_name = name
        while new_name.lower() in taken or (
            new_name != name and new_name in triggers.cells.columns
        ):
            new_name = f"given_{new_name}"
        new_names[name] = new_name
    table = triggers.cells.rename(columns=new_names).assign(**added)
    bad = [
        Rejected(triggers.name(row), reasons[row]) for row in np.flatnonzero(~is_predicted).tolist()
    ]
    return table, bad
