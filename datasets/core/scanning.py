"""Files in folders: which of them are the user's, and which are pictures, sounds or strain by their names."""

from __future__ import annotations

import glob
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from datasets.core.errors import Rejected, SecondhandError, one_line

SUFFIXES = {
    "picture": (
        ".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm",
        ".heic", ".heif", ".avif",
    ),
    "sound": (
        ".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".w64", ".rf64", ".m4a",
    ),
    "strain": (".hdf5", ".h5", ".hdf", ".gwf", ".txt", ".txt.gz", ".together"),
}  # fmt: skip
#: Why a folder is not looked into.
LINK_LOOP, UNLISTED = "link back to a folder above it", "folder that cannot be listed"


def kind_of(path: str | os.PathLike[str]) -> str | None:
    """Kind of a file by its ending, None where no reader knows it.

    Examples
    --------
    >>> kind_of("a.JPG"), kind_of("b.flac"), kind_of("c.gwf"), kind_of("notes.pdf")
    ('picture', 'sound', 'strain', None)
    """
    name = os.fspath(path).lower()
    return next((kind for kind, ends in SUFFIXES.items() if name.endswith(ends)), None)


def walk(root: str | os.PathLike[str], left_out: list[Rejected]) -> Iterator[str]:
    """The user's files in a folder as they are found, its own before those of the folders in it, by name.

    Links to folders are followed. One that leads back to a folder above it, and a folder that cannot be
    listed, go to ``left_out``.
    """

    def unlisted(error: OSError) -> None:
        left_out.append(Rejected(str(error.filename), UNLISTED))

    for folder, folders, files in os.walk(root, onerror=unlisted, followlinks=True):
        back = [name for name in folders if is_link_loop(os.path.join(folder, name))]
        left_out += [Rejected(os.path.join(folder, name), LINK_LOOP) for name in sorted(back)]
        folders[:] = sorted({*folders} - {*back})
        yield from (
            os.path.join(folder, name) for name in sorted(files) if is_user_file(Path(name))
        )


def is_link_loop(folder: str | os.PathLike[str]) -> bool:
    """Whether it is a link to a folder that it lies in: who follows it goes in circles."""
    if not os.path.islink(folder):
        return False
    above = {os.path.realpath(parent) for parent in Path(folder).absolute().parents}
    return os.path.realpath(folder) in above


def files_below(root: str | os.PathLike[str]) -> tuple[list[str], list[Rejected]]:
    """All that `walk` finds, sorted; and what is left out, also files that no table can name."""
    bad: list[Rejected] = []
    files = []
    for path in sorted(walk(root, bad), key=Path):
        name = path.encode("utf-8", "replace").decode()
        if name == path:
            files.append(path)
        else:
            bad.append(Rejected(name, "its name is no UTF-8: rename it"))
    return files, bad


def find_files(
    names: Sequence[str], kind: str | None = None, skipped: Counter[str] | None = None
) -> Iterator[str]:
    """The files behind names: themselves, a pattern's matches, or those in a folder and below.

    In a folder only files of the kind count; a file named outright is always answered, if only with
    what is wrong with it.

    Parameters
    ----------
    kind : what the model is asked about, "picture", "sound" or "strain"; None for all that is read.
    skipped : counts, by the endings of their names, what a folder holds besides; and by the reasons
        folders in it that are not looked into.
    """
    for name in names:
        if os.path.isdir(name):
            left_out: list[Rejected] = []
            for file in walk(name, left_out):
                if (file_kind := kind_of(file)) and kind in (None, file_kind):
                    yield str(Path(file))
                elif skipped is not None:
                    skipped[Path(file).suffix.lower() or "without an ending"] += 1
            if skipped is not None:
                skipped.update(folder.reason for folder in left_out)
        elif not os.path.exists(name) and glob.has_magic(name):
            # A pattern that matches nothing is answered as a file that is not there.
            yield from sorted(glob.glob(name, recursive=True)) or [name]
        else:
            yield name


def some_files(names: Sequence[str], kind: str, skipped: Counter[str]) -> Iterator[str]:
    """`find_files` where there must be one; raises SecondhandError at once where there is none."""
    files = find_files(names, kind, skipped)
    first = next(files, None)
    if first is None:
        raise SecondhandError(
            f"{', '.join(names)[:500]}: no {kind} of a kind that is read"
            f"{f' ({skipped_line(skipped)})' if skipped else ''}; name files, folders that hold some, "
            "or patterns"
        )
    return chain([first], files)


def skipped_line(skipped: Counter[str]) -> str:
    """What a folder held besides, in words."""
    counts = [f"{count} {ending}" for ending, count in skipped.most_common(10)]
    more = ["…"] if len(skipped) > 10 else []
    things = "files and folders" if {*skipped} & {LINK_LOOP, UNLISTED} else "files of other kinds"
    return one_line(f"skipped {skipped.total()} {things}: {', '.join([*counts, *more])}")


def absolute_path(path: str | os.PathLike[str]) -> str:
    """A path from the root, which names the same file from any folder. ``..`` stays: behind a link it is
    not the folder above."""
    return str(Path.cwd() / path)


def is_user_file(path: Path) -> bool:
    """A file of the user's. Operating systems leave .DS_Store, ._photo.jpg and Thumbs.db everywhere."""
    return not path.name.startswith(".") and path.name not in ("Thumbs.db", "desktop.ini")
