"""Whole photos do not train a model of boxes."""

from __future__ import annotations

from fields.cameras.boxes import check_whole_photos
from learners.runs.before_training import CHECKS, Check

CHECKS.add(Check("whole photos", check_whole_photos))
