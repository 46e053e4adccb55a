"""usage: secondhand cache info|verify|clear [flags]

Inspect, verify or empty the cache of spectrograms and decoded pictures.

examples:
  secondhand cache info      # number of pictures, size, limit, folder
  secondhand cache verify    # delete damaged pictures; exit status 3 if there were some
  secondhand cache clear     # delete all pictures
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from datasets.cli.options import Checked, option, positional
from datasets.cli.parser import CACHE_DIR, Parser
from datasets.core.errors import counted


def readable(size: int) -> str:
    """Format a number of bytes with a binary unit, such as "1.5 GiB"."""
    value, units = float(size), ["bytes", "KiB", "MiB", "GiB"]
    while value >= (1024 if units[0] == "bytes" else 1023.95) and len(units) > 1:
        value /= 1024
        del units[0]
    return f"{value:.1f} {units[0]}" if units[0] != "bytes" else counted(size, "byte")


@dataclass(kw_only=True)
class CacheSettings(Checked):
    """cache"""

    action: Literal["info", "verify", "clear"] = positional(
        "What to do with the cache: info, verify or clear."
    )
    cache_dir: str | None = option(None, CACHE_DIR, metavar="FOLDER")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns the exit status: 0, or 3 if some pictures were damaged."""
    options = Parser(__doc__, CacheSettings).parse(CacheSettings, argv)
    from datasets.core.store import FAILURE, PICTURE, PIXELS
    from datasets.spectrograms.pictures import PictureCache

    cache = PictureCache(options.cache_dir)
    store = cache.store
    if options.action == "info":
        figures = {
            "root": store.root,
            "pictures": len(store.sizes(PICTURE)),
            "failures": len(store.sizes(FAILURE)),
            "size": readable(sum(store.sizes())),
            "limit": readable(store.max_bytes),
            "decoded pictures": readable(sum(store.sizes(PIXELS))),
        }
        print(*(f"{name}: {value}" for name, value in figures.items()), sep="\n")
    elif options.action == "clear":
        pictures = len(store.sizes(PICTURE))
        store.clear()
        print(f"removed {counted(pictures, 'picture')} from {store.root}")
    else:
        intact, damaged = cache.verify()
        for path in damaged:
            print(f"removed: {path}", file=sys.stderr)
        print(f"pictures: {intact} intact, {len(damaged)} damaged and removed")
        return 3 if damaged else 0
    return 0
