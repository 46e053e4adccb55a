"""Events of the open-science centre, from a server on this machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from datasets import catalog
from datasets.core.errors import SecondhandError
from datasets.items.facts import Origin
from datasets.steps.reading import load_table
from datasets.strain.files import read_strain
from tests.datasets import lookalikes
from tests.datasets.lookalikes import Server, server

__all__ = ["server"]  # a fixture


def test_an_event_has_its_time_and_both_detectors(server: Server, tmp_path: Path) -> None:
    lookalikes.event(server, tmp_path)
    table = load_table("gwosc:GW150914")
    assert table.kind == "strain"
    assert [Path(path).name[:4] for path in table.frame["path"]] == ["H-H1", "L-L1"]
    assert (table.frame["gps"] == 1126259462.4).all()
    assert set(table.frame["label"]) == {"Chirp"}
    assert set(table.frame["group"]) == {"GW150914"}
    assert set(table.frame["split"]) == {"test"}
    assert "gwosc.org" in table.fact(Origin).note
    strain = read_strain(table.frame["path"].iloc[0], at=1126259462.4, context=16.0)
    assert strain.rate == 4096
    before = len(server.requests)
    load_table("gwosc:GW150914")
    assert len(server.requests) == before == 3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (('"hdf5"', '"txt"'), "GWOSC has no 32 s of strain"),
        (("https://gwosc.org/", "https://example.org/"), "is not an HDF5 file of gwosc.org"),
        (("https://gwosc.org/", "file:///"), "is not an HDF5 file of gwosc.org"),
        (("1126259462.4", "NaN"), "GPS time of the event is nan"),
        (('"GPS"', '"gps"'), "not a response of the event API"),
        (("{", "["), "not a response of the event API"),
    ],
)
def test_an_odd_answer_about_an_event(
    server: Server, tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    lookalikes.event(server, tmp_path)
    path = "/gwosc.org/eventapi/json/event/GW150914"
    server.files[path] = server.files[path].decode().replace(*change).encode()
    with pytest.raises(SecondhandError, match=message):
        load_table("gwosc:GW150914")
    assert not [path for path in server.requests if path.endswith("hdf5")]


@pytest.mark.parametrize("name", ["", "../../etc", "a/b", "GW150914?x=1"])
def test_what_is_no_event(server: Server, name: str) -> None:
    with pytest.raises(SecondhandError, match="not the name of an event"):
        load_table(f"gwosc:{name}")
    assert not server.requests


def test_the_catalog_lists_and_downloads_events(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lookalikes.event(server, tmp_path)
    assert catalog.main([]) == 0
    assert "gwosc:EVENT         small  no hash open data of LIGO" in capsys.readouterr().out
    assert catalog.main(["gwosc:GW150914"]) == 0
    folder, *lines = capsys.readouterr().out.splitlines()
    assert Path(folder).name == "GW150914"
    assert [line.endswith(".hdf5 --at 1126259462.4") for line in lines] == [True, True]
    with pytest.raises(SecondhandError, match=r"esc50, .*gwosc:EVENT"):
        catalog.fetch_named("esc500")
