"""The settings of the page: its flags."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets.cli.conflicts import Conflict, Refused
from datasets.cli.options import Checked, Limits, option, positional
from datasets.core.folders import or_elsewhere
from learners.cli.commands import Sectioned

#: Addresses that only this computer reaches.
LOCAL = ("127.0.0.1", "localhost", "::1")
#: Why training needs passwords where others reach the page, and what to do.
VISITORS = "it lets visitors read and write files of this machine"
GIVE_AUTH = "give --auth NAME:PASSWORD"


def split_pairs(auth: Sequence[str]) -> list[tuple[str, str]]:
    """Names and passwords of ``NAME:PASSWORD``; "" for what is missing."""
    pairs = (pair.partition(":") for pair in auth)
    return [(name, password) for name, _, password in pairs]


@dataclass(kw_only=True)
class LimitSettings(Checked):
    """limits"""

    max_mb: int = option(50, "Maximum size of one file in MB.", limits=Limits(1, high=2000))
    max_files: int = option(
        64,
        "Maximum number of files that a visitor can drop at once.",
        limits=Limits(1, high=10_000),
    )
    queue: int = option(
        32,
        "Maximum number of requests that wait for a model; further ones get the answer 'busy'.",
        limits=Limits(1, high=10_000),
    )
    bs: int = option(8, "Maximum number of requests in one batch.", limits=Limits(1, high=1024))
    keep: float = option(30.0, "Minutes to keep an uploaded file.", limits=Limits(above=0))


@dataclass(kw_only=True)
class FeatureSettings(Checked):
    """features"""

    feedback: Path | None = option(
        None,
        "Let visitors correct predictions, and save the corrections in this folder. Default: off.",
        metavar="FOLDER",
    )
    train: Path | None = option(
        None,
        "Add a tab that trains a model from a folder on this machine, and writes its run into this folder "
        "(default: runs/). For visitors of other computers it needs --auth. Default: off.",
        bare="runs",
        metavar="FOLDER",
    )
    device: str = option("auto", "Device: auto, cpu, cuda or cuda:N.", metavar="NAME")


@dataclass(kw_only=True)
class PageSettings(Sectioned, FeatureSettings, LimitSettings):
    """network and access

    ``added`` : the settings of `app.tabs`.
    """

    models: list[str] = positional(
        lambda: f"Model folders{or_elsewhere()}. Default: the newest model in runs/.", []
    )
    port: int = option(7860, "Port of the page; 0 selects a free one.")
    host: str = option(
        "127.0.0.1",
        "Address to listen on; 0.0.0.0 lets other computers of the network open the page.",
        metavar="ADDRESS",
    )
    allow_host: list[str] = option(
        [],
        "Further host name under which visitors reach the page, for example behind a proxy; repeatable.",
        metavar="NAME",
    )
    share: bool = option(False, "Also make a public link through Gradio's servers.")
    auth: list[str] = option(
        [],
        "Let in only visitors with this name and password; repeatable.",
        metavar="NAME:PASSWORD",
    )

    @property
    def local(self) -> bool:
        """Whether only this computer reaches the page."""
        return self.host in LOCAL

    @property
    def passwords(self) -> list[tuple[str, str]]:
        """Names and passwords of the visitors that are let in; without any, everybody is."""
        return split_pairs(self.auth)

    conflicts = (
        Refused(
            "auth",
            "the name or the password is missing",
            "write NAME:PASSWORD",
            of=lambda pairs: not all(name and password for name, password in split_pairs(pairs)),
            secret=True,
        ),
        Conflict(
            "train",
            "host",
            VISITORS,
            GIVE_AUTH,
            clash=lambda train, host: train and host not in LOCAL,
            unless="auth",
        ),
        *(
            Conflict("train", name, VISITORS, GIVE_AUTH, unless="auth")
            for name in ("allow_host", "share")
        ),
        Refused(
            "train",
            "that is a model folder",
            "name models first: secondhand app {value} --train",
            of=lambda folder: folder and (folder / "config.json").is_file(),
        ),
    )
