"""When and where files were recorded, as columns of their predictions."""

from __future__ import annotations

from fields.cameras.clock import Clock
from fields.cameras.deployments import read_deployments
from fields.cameras.sections import CameraSettings
from fields.cameras.when import WhenAndWhere, when_and_where
from learners.cli.commands import PredictSettings
from learners.predictions.columns import COLUMNS, Columns


def of_call(settings: PredictSettings) -> WhenAndWhere:
    """Time and place of the files of a call, by themselves and a table of deployments."""
    table = settings.of(CameraSettings).deployments
    return WhenAndWhere(Clock(None if table is None else read_deployments(table), settings.paths))


COLUMNS.add(Columns("time and place", ("deployments",), of_call, when_and_where))
