"""When and where files were recorded, in the rows of their predictions."""

from __future__ import annotations

import json
from collections.abc import Sequence

from datasets.core.processes import CRASHED
from datasets.tables.cells import read_cells
from fields.cameras.clock import TIME_AND_PLACE, Clock
from fields.cameras.deployments import read_deployments
from fields.cameras.when import WhenAndWhere
from learners.inference.predictions import Prediction
from learners.outputs.base import OUTPUTS
from learners.predictions.rows import Merge, RowSettings, Windows
from learners.rule.reasons import Reason, Why
from tests.datasets.audio.recordings import recording
from tests.learners.outputs.test_outputs import answer, tabbed
from tests.left_out import needs


class First(Merge):
    """A row for the first window of a recording."""

    def rows(self, prediction: Prediction) -> Sequence[Prediction]:
        return prediction.windows[:1]


@needs("recordings")
def test_rows_tell_when_and_where_they_were_recorded(tmp_path):
    """Times follow from the recording's start; the header depends only on the call."""
    file = tmp_path / "north/20190604_235958.WAV"
    recording(file, guano="Timestamp: 2019-06-04T23:59:58+02:00\nLoc Position: 52.5 -4.25")
    long = answer(file).with_more(
        windows=(answer(file, "a", 0.9, 0.0, 3.0), answer(file, "a", 0.9, 2.25, 5.25))
    )
    plain = answer(tmp_path / "x.wav")
    (tmp_path / "d.csv").write_text("deployment,timezone\nnorth,Europe/Berlin\n")
    clock = Clock(read_deployments(tmp_path / "d.csv"))
    shape = RowSettings(merge=Windows(), features=[WhenAndWhere(clock)])
    expected = [
        ("2019-06-04T23:59:58+02:00", "52.500000", "-4.250000", "north"),
        ("2019-06-05T00:00:00.250+02:00", "52.500000", "-4.250000", "north"),
        ("", "", "", ""),
    ]
    OUTPUTS["csv"].write([long, plain], shape, tmp_path / "a.csv")
    frame = read_cells(tmp_path / "a.csv")
    assert [*frame[[*TIME_AND_PLACE]].itertuples(index=False, name=None)] == expected
    OUTPUTS["csv"].write([plain], shape, tmp_path / "b.csv")
    assert [*read_cells(tmp_path / "b.csv")] == [*frame]
    for why, offset in (
        ("cut off", "+02:00"),
        (CRASHED, ""),
    ):  # only the name of a deadly file is read
        bad = answer(file, "unknown")._replace(reason=Reason(Why.BAD_FILE, why))
        OUTPUTS["csv"].write(
            [bad], RowSettings(features=[WhenAndWhere(Clock())]), tmp_path / "b.csv"
        )
        assert read_cells(tmp_path / "b.csv")["time"].tolist() == [f"2019-06-04T23:59:58{offset}"]
    OUTPUTS["csv"].write([plain], RowSettings(), tmp_path / "c.csv")
    assert not {*read_cells(tmp_path / "c.csv")} & {*TIME_AND_PLACE}
    OUTPUTS["jsonl"].write([long, plain], shape, tmp_path / "a.jsonl")
    lines = list(map(json.loads, (tmp_path / "a.jsonl").read_text().splitlines()))
    assert [line["time"] for line in lines] == [time for time, *_ in expected]
    assert [line["latitude"] for line in lines] == [52.5, 52.5, None]
    OUTPUTS["raven"].write([long], shape._replace(names=[str(tmp_path)]), tmp_path / "raven")
    rows = tabbed(tmp_path / "raven/north/20190604_235958.selections.txt")
    assert [row["Time"] for row in rows] == [time for time, *_ in expected[:2]]
    assert [row["Deployment"] for row in rows] == ["north", "north"]
    events = shape._replace(merge=First())
    OUTPUTS["csv"].write([long], events, tmp_path / "e.csv")
    assert read_cells(tmp_path / "e.csv")["time"].tolist() == [expected[0][0]]
