"""List and download public data sets, which finetune --data takes by name.

Downloads are checked against published hashes where there are any, and
unpacked into sets/NAME/files of the cache folder ($SECONDHAND_CACHE). To use
files that you downloaded yourself, put them into sets/NAME, or unpack them in
sets/NAME/files. With SECONDHAND_MIRROR=BASE, https://HOST/PATH is downloaded
from BASE/HOST/PATH.

examples:
  python -m datasets.catalog                  # list the sets: size, licence
  python -m datasets.catalog esc50            # download a set, print its folder
  python -m datasets.catalog gwosc:GW150914   # download an event, print its files
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import folder_beside
from datasets.core.help import plain_parser
from datasets.core.program import use_utf8_output
from datasets.sources.download import fetch_file, require_space
from datasets.sources.public import NOTE, PREFIX, SETS, fetch_event
from datasets.spectrograms.pictures import cache_root

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)


def names() -> str:
    """All names, as text for a message."""
    return f"{', '.join(SETS)}, {PREFIX}EVENT"


def is_name(source: str) -> bool:
    """Whether a source of ``--data`` is the name of a public set or an event."""
    return source in SETS or source.startswith(PREFIX)


def fetch(name: str) -> Path:
    """Folder of a public set, which is downloaded and unpacked on first use.

    Raises
    ------
    SecondhandError : there is no such set, no network or no disk space, or a hash or archive is wrong.
    """
    if name.startswith(PREFIX):
        return fetch_event(name.removeprefix(PREFIX), _root() / "gwosc")[1]
    if name not in SETS:
        raise SecondhandError(f"there is no public set {name!r}. The public sets are {names()}")
    folder = _root() / name / "files"
    if folder.is_dir():
        return folder
    public = SETS[name]
    log.info("%s: downloading %.1f GB; %s", name, public.gigabytes, public.note)
    folder.parent.mkdir(parents=True, exist_ok=True)
    require_space(folder.parent, 1e9 * public.gigabytes, name)
    fetched = [fetch_file(file, folder.parent) for file in public.files]
    downloads = [path for path, downloaded in fetched if downloaded]
    try:
        with folder_beside(folder, replace=False) as beside:
            public.unpack([path for path, _ in fetched], beside)
    except BadFile:
        _remove(downloads)  # otherwise the damaged files would be used, and fail, again
        raise
    _remove(downloads)
    return folder


def load(name: str) -> tuple[pd.DataFrame, str]:
    """The item rows of a public set or event, and a note on licence and citation."""
    if name.startswith(PREFIX):
        return fetch_event(name.removeprefix(PREFIX), _root() / "gwosc")[0], NOTE
    folder = fetch(name)
    return SETS[name].read(folder), SETS[name].note


def _root() -> Path:
    return cache_root() / "sets"


def _remove(files: list[Path]) -> None:
    for file in files:
        file.unlink(missing_ok=True)


def main(argv: list[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    parser = plain_parser("python -m datasets.catalog", str(__doc__))
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="Sets to download. Default: list all sets."
    )
    options = parser.parse_args(argv)
    logging.basicConfig(format="%(message)s", stream=sys.stderr, level=logging.INFO)
    if not options.names:
        for name, public in SETS.items():
            has_hash = all(file.hashes for file in public.files)
            print(f"{name:16} {public.gigabytes:4.1f} GB  {'hash' if has_hash else 'no hash':8}{public.note}")  # fmt: skip
        print(f"{PREFIX + 'EVENT':16} {0:4.1f} GB  no hash {NOTE}")
    for name in options.names:
        try:
            print(fetch(name))
        except SecondhandError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        if name.startswith(PREFIX):
            rows, _ = load(name)
            for path, gps in zip(rows["path"], rows["gps"], strict=True):
                print(f"{path} --at {gps}")
    return 0


if __name__ == "__main__":
    use_utf8_output()
    sys.exit(main())
