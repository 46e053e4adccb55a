"""Writes predictions to files or the terminal, in the formats of the field; interrupted jobs resume."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from learners.predictions.boxes import boxes_of
    from learners.predictions.jobs import (
        check_class_names,
        predict_files,
        read_class_names,
        read_thresholds,
    )
    from learners.predictions.journal import Journal
    from learners.predictions.provenance import Provenance
    from learners.predictions.rows import Events, RowSettings
    from learners.predictions.strain_files import StrainFiles
    from learners.predictions.triggers import predict_triggers

__getattr__ = lazy_names(__name__)
