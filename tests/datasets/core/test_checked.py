"""Dataclasses from JSON: exactly their keys, types and ranges."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any

import pytest
from msgspec import Meta

from datasets.core.checked import check_fields, one_of, read_as, read_file
from datasets.core.errors import BadFile, SecondhandError

Share = Annotated[float, Meta(ge=0, le=1)]


@dataclass(frozen=True)
class Point:
    at: Share
    right: Share = math.nan
    on: Annotated[str, one_of("probability", "knn")] = "knn"
    limit: int | None = None
    count: int = 0


@dataclass(frozen=True)
class Curve:
    points: list[Point]
    best: Point | None = None
    floors: dict[str, list[Share]] = field(default_factory=dict)
    range: tuple[Share, Share] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if self.range[0] > self.range[1]:
            raise SecondhandError(f"range={self.range}")


WHOLE = {"points": [], "floors": {}, "range": [0, 1]}


def point(**changes: Any) -> dict[str, Any]:
    return {**asdict(Point(0.5, 0.5)), **changes}


def test_types_are_those_of_the_dataclass() -> None:
    read = read_as(Curve, {**WHOLE, "points": [point(at=1)], "best": point()}, "curve")
    assert read == Curve([Point(1.0, 0.5)], Point(0.5, 0.5))
    assert isinstance(read.points[0].at, float)
    assert isinstance(read.range, tuple)


def test_null_is_nan_where_that_is_the_default() -> None:
    assert math.isnan(read_as(Point, point(right=None), "point").right)


def test_what_may_be_none_may_be_missing() -> None:
    assert read_as(Curve, WHOLE, "curve") == Curve([])


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"best": point(at=2)}, "curve.best.at=2 .*1"),
        ({"best": point(at=True)}, "curve.best.at=True"),
        ({"best": point(at=10**400)}, r"curve.best.at=1000.*0 "),
        ({"best": point(at=None)}, "curve.best.at=None"),
        ({"best": point(count=None)}, "curve.best.count=None"),
        ({"best": point(count=1.5)}, "curve.best.count=1.5"),
        ({"best": point(right=math.nan)}, "curve.best.right=nan"),
        ({"best": point(on="os.system")}, "curve.best.on='os.system' .*probability, knn"),
        ({"best": point(on="knn\n")}, "curve.best.on="),
        ({"best": point(colour=1)}, "curve.best.colour is not a known key"),
        ({"best": {"at": 0.5, "right": 0.5, "on": "knn"}}, "curve.best.count is missing"),
        ({"best": [0.5]}, r"curve.best=\[0.5\]"),
        ({"points": [point(), point(at=-1)]}, r"curve.points\[1\].at=-1"),
        ({"points": [point(), {"at": 1}]}, r"curve.points\[1\].right is missing"),
        ({"floors": {"a": [], "b": 1.5}}, r"curve.floors\[...\]={'a': \[\], 'b': 1.5}"),
        ({"floors": {"a": [0.5, None]}}, r"curve.floors\[...\]\[1\]={'a': \[0.5, None\]}"),
        ({"range": [0, 1, 1]}, r"curve.range=\[0, 1, 1\]"),
        ({"range": [1, 0]}, r"range=\(1.0, 0.0\)"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place_and_value(changes, place: str) -> None:
    with pytest.raises(SecondhandError, match=place):
        read_as(Curve, {**WHOLE, **changes}, "curve")


@pytest.mark.parametrize("values", [None, [], "x", 1])
def test_what_is_no_object_is_refused(values) -> None:
    with pytest.raises(SecondhandError, match="curve="):
        read_as(Curve, values, "curve")


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff", b"[1]", b'{"x": 1}'])
def test_a_file_that_holds_anything_else_is_bad(content: bytes, tmp_path) -> None:
    (tmp_path / "point.json").write_bytes(content)
    with pytest.raises(BadFile, match=r"point\.json"):
        read_file(Point, tmp_path / "point.json")


def test_all_fields_that_do_not_fit_are_named() -> None:
    with pytest.raises(SecondhandError, match=r"invalid point: at=2 .*on='x' .*count='1'"):
        check_fields(Point(2, on="x", count="1"), "point")  # type: ignore[arg-type]
    whole = Point(1, right=0)
    check_fields(whole, "point", count=Annotated[int, Meta(le=5)])
    assert isinstance(whole.at, float)
