"""usage: secondhand catalog [NAME...] [flags]

List and download public data sets, which finetune --data takes by name.

Downloads are checked against published hashes where there are any, and unpacked into sets/NAME/files of the cache
folder ($SECONDHAND_CACHE). To use files that you downloaded yourself, put them into sets/NAME, or unpack them in
sets/NAME/files. With SECONDHAND_MIRROR=BASE, https://HOST/PATH is downloaded from BASE/HOST/PATH.

examples:
  secondhand catalog                  # list the sets: size, licence
  secondhand catalog esc50            # download a set, print its folder
  secondhand catalog gwosc:GW150914   # download an event, print its files
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets.cli.options import Checked, positional
from datasets.cli.parser import Parser
from datasets.core.errors import SecondhandError
from datasets.sources.gwosc import NOTE, PREFIX, fetch_event
from datasets.sources.public import SETS, fetch


def fetch_named(name: str) -> Path:
    """Folder of a public set or event, which is downloaded on first use.

    Raises
    ------
    SecondhandError : as `fetch`, or there is no such set.
    """
    if name.startswith(PREFIX):
        return fetch_event(name.removeprefix(PREFIX))[1]
    if name not in SETS:
        raise SecondhandError(
            f"there is no public set {name!r}. The public sets are {', '.join(SETS)}, {PREFIX}EVENT"
        )
    return fetch(name)


@dataclass(kw_only=True)
class CatalogSettings(Checked):
    """sets"""

    names: list[str] = positional("Sets to download. Default: list all sets.", [])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    options = Parser(__doc__, CatalogSettings).parse(CatalogSettings, argv)
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    if not options.names:
        for name, public in SETS.items():
            has_hash = all(file.hashes for file in public.files)
            print(f"{name:16} {public.gigabytes:4.1f} GB  {'hash' if has_hash else 'no hash':8}{public.note}")  # fmt: skip
        print(f"{PREFIX + 'EVENT':16} {0:4.1f} GB  no hash {NOTE}")
    for name in options.names:
        try:
            print(fetch_named(name))
        except SecondhandError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        if name.startswith(PREFIX):
            rows, _ = fetch_event(name.removeprefix(PREFIX))
            for path, gps in zip(rows["path"], rows["gps"], strict=True):
                print(f"{path} --at {gps}")
    return 0
