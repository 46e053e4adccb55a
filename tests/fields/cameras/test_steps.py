"""Grouping by deployment, and testing on the latest recordings."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from datasets.core.errors import SecondhandError
from datasets.items.describe import describe_protocol
from datasets.items.facts import Groups, Later, Unsplit
from datasets.items.items import Items
from datasets.items.settings import SplitSettings
from datasets.steps.reading import read_items
from fields.cameras.steps import clock_of
from tests.asked import asked
from tests.datasets.images.test_capture_time import photo


def random_scene(seed: int) -> Image.Image:
    """Return a picture unlike any other."""
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (48, 48, 3), np.uint8))


START = datetime(2024, 3, 1, 12)


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two classes of twenty different photos, one a day, at four sites in turn."""
    root = tmp_path_factory.mktemp("photos")
    for n in range(40):
        name = f"{'ab'[n % 2]}/site{n % 4}_{n:02}.jpg"
        photo(root / name, START + timedelta(days=n), zone="+01:00", scene=random_scene(n))
    return root


def read(data: Path, **settings: object) -> Items:
    settings = {"near_duplicates": "ignore", **settings}
    return read_items(asked(data=str(data), **settings))


def test_what_was_recorded_last_is_tested(photos: Path) -> None:
    table = read(photos, split_by="time")
    frame = table.frame
    times = frame["time"].map(datetime.fromisoformat)
    tested = frame["split"].eq("test")
    assert tested.sum() == 8
    assert times[tested].min() > times[~tested].max()
    assert {*frame["split"]} == {"train", "valid", "calibration", "test"}
    assert (
        table.fact(Later).learnt_until
        == times[~tested].max().isoformat()
        == "2024-04-01T12:00:00+01:00"
    )
    protocol = describe_protocol(table, table.fact(Unsplit).frame, SplitSettings())
    assert protocol.startswith(
        "files recorded after 2024-04-01T12:00:00+01:00; trained on files until then, tested on later ones"
    )


def test_sites_do_not_bind_what_is_tested_later_but_the_other_parts(photos: Path) -> None:
    table = read(photos, split_by="time", group_by="^(site.)")
    frame = table.frame
    assert frame["split"].eq("test").sum() == 8
    assert not table.rejected
    assert {*frame["group"][frame["split"].eq("test")]} == {f"site{n} (later)" for n in range(4)}
    assert table.fact(Groups).number == 8
    earlier = frame.loc[frame["split"].ne("test")]
    assert (
        earlier.groupby("group")["split"].agg(lambda part: part.eq("train").nunique()).eq(1).all()
    )


def test_what_has_no_clock_or_comes_too_late_to_learn_is_listed(
    photos: Path, tmp_path: Path
) -> None:
    rows = [
        {"path": str(path), "label": path.parent.name} for path in sorted(photos.rglob("*.jpg"))
    ]
    rows += [
        {"path": photo(tmp_path / f"x{n}.jpg", None, scene=random_scene(100 + n)), "label": "a"}
        for n in range(2)
    ]
    late = photo(tmp_path / "late.jpg", START + timedelta(days=90), scene=random_scene(200))
    late2 = photo(tmp_path / "late2.jpg", START + timedelta(days=91), scene=random_scene(201))
    rows += [{"path": path, "label": "new"} for path in (late, late2)]
    table_file = tmp_path / "items.csv"
    pd.DataFrame(rows).to_csv(table_file, index=False)
    table = read(table_file, split_by="time")
    reasons = {Path(bad.path).name: bad.reason for bad in table.rejected}
    assert {*reasons} == {"x0.jpg", "x1.jpg", "late.jpg", "late2.jpg"}
    assert "no time" in reasons["x0.jpg"]
    assert "'new'" in reasons["late.jpg"]
    assert table.classes == ["a", "b"]
    frame = pd.DataFrame(rows).assign(time="").head(40)
    frame.assign(time="noon").to_csv(table_file, index=False)
    with pytest.raises(SecondhandError, match=r"'noon'.* is not in ISO 8601"):
        read(table_file, split_by="time")
    frame["time"] = [f"2024-01-{1 + n % 28:02}T00:00:00" for n in range(40)]
    frame.to_csv(table_file, index=False)
    assert read(table_file, split_by="time").fact(Later).learnt_until < "2024-02", (
        "the table counts before EXIF"
    )
    frame.assign(time="2024-01-01T00:00:00").to_csv(table_file, index=False)
    with pytest.raises(SecondhandError, match="all items have the same time"):
        read(table_file, split_by="time")
    frame.assign(split="train").to_csv(table_file, index=False)
    with pytest.raises(SecondhandError, match=r"splits of their own \(train\)"):
        read(table_file, split_by="time")


def test_deployments_are_groups(photos: Path, tmp_path: Path, caplog) -> None:
    deployments = tmp_path / "deployments.csv"
    deployments.write_text("deployment\n" + "".join(f"site{n}\n" for n in range(5)))
    with caplog.at_level("WARNING"):
        table = read(photos, group_by="deployment", deployments=deployments)
    frame = table.frame
    assert frame["group"].tolist() == frame["path"].str.extract("(site.)_")[0].tolist()
    assert frame["deployment"].equals(frame["group"])
    assert frame.groupby("group")["split"].agg(lambda part: part.eq("train").nunique()).eq(1).all()
    assert "Deployments without a file: 1 of 5, site4." in caplog.text
    deployments.write_text("deployment\nsite1\n")
    with pytest.raises(SecondhandError, match=r"30 of 40 items belong to no deployment.*site0_00"):
        read(photos, group_by="deployment", deployments=deployments)
    by_label = frame[["path", "label", "deployment"]]
    by_label.to_csv(tmp_path / "items.csv", index=False)
    by_table = read(tmp_path / "items.csv", group_by="deployment").frame
    assert by_table["group"].tolist() == frame["group"].tolist()


def test_sequences_of_a_table_are_events(photos: Path, tmp_path: Path) -> None:
    """Of photos of one sequence, whatever their times."""
    lines = ["path,label,seq_id"]
    for n, file in enumerate(sorted(photos.glob("*/*.jpg"))):
        lines.append(f"{file},{file.parent.name},s{n // 10}")
    (tmp_path / "items.csv").write_text("\n".join(lines))
    assert {*clock_of(read(tmp_path / "items.csv")).sequences.values()} == {"s0", "s1", "s2", "s3"}
