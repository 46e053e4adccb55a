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

from datasets.cli.options import Checked, positional
from datasets.cli.parser import Parser
from datasets.core.errors import SecondhandError
from datasets.core.program import typed_words
from datasets.sources.base import Fetched, in_order
from datasets.sources.public import SETS, fetch


def fetch_named(name: str) -> Fetched:
    """A public set, or what another source has under this name, which is downloaded on first use.

    Raises
    ------
    SecondhandError : as `fetch`, or there is no such set.
    """
    if name in SETS:
        return Fetched(fetch(name), [])
    for source in in_order():
        if (fetched := source.fetch(name)) is not None:
            return fetched
    others = (name for source in in_order() if source.note for name in source.names)
    raise SecondhandError(
        f"there is no public set {name!r}. The public sets are {', '.join([*SETS, *others])}"
    )


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
            print(f"{name:16} {public.gigabytes:5.2g} GB  {'hash' if has_hash else 'no hash':8}{public.note}")  # fmt: skip
        for source in in_order():
            for name in source.names if source.note else ():
                print(f"{name:16} {'small':>8}  no hash {source.note}")
        train = " ".join([*typed_words("finetune"), "--data", "NAME"])
        print(f"Download a set and train on it, NAME as above:  {train}", file=sys.stderr)
    for name in options.names:
        try:
            folder, lines = fetch_named(name)
        except SecondhandError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        print(folder, *lines, sep="\n")
    return 0
