"""usage: secondhand render FILE... --out FOLDER [flags]

Write spectrograms of sound files, Q-scans of strain files, and pictures of instruments as a network sees them as PNG
pictures, without training.

Pictures that are not of 8 bits are drawn by one range for all, which is inferred from them as a training infers it; all pictures
are upright and in RGB. In a folder with sound or strain files pictures are left out.

A recording longer than the window gives one picture per window. The pictures have no axes unless you give --axes. The
folders below the files' common folder are kept below --out, so files of two places keep most of their
paths. Standard output lists file and picture, separated by a tab; standard error lists the files that were left
out, and why. Exit status: 0; 3 if some files could not be rendered; 2 for a wrong call.

examples:
  secondhand render calls/*.wav --out pictures/
  secondhand render cells/ --range 0 4095 --page max --out pictures/
  secondhand render calls/*.wav --axes --colour magma --out pictures/
  secondhand render strain/*.hdf5 --at 1126259462.4 --axes --out pictures/
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from datasets.cli.options import Checked, option, positional, take_sections
from datasets.cli.parser import CACHE_DIR, Parser
from datasets.core import progress
from datasets.core.address import as_path, contents, is_folder, member, without_secrets
from datasets.core.errors import BadFile, Rejected, SecondhandError
from datasets.core.files import write_beside
from datasets.core.logs import logger_levels
from datasets.core.part import Part, parts_of
from datasets.core.processes import CRASHED, check_files_isolated, in_parallel
from datasets.core.scanning import files_below
from datasets.images.options import SampleSettings
from datasets.kinds.base import KINDS, Kind, drawn_kinds, kind_of, photo_kinds
from datasets.spectrograms.workers import WORKERS, WorkersSettings

if TYPE_CHECKING:
    from datasets.images.settings import PictureSettings
    from datasets.spectrograms.settings import SpectrogramSettings


#: Pictures that a process draws before it hands them over.
_CHUNK = 8
#: Flags that are settings of spectrograms of sound.
SOUND = ("level", "colour", "size", "rate", "window")


@dataclass(kw_only=True)
class RenderSettings(Checked):
    """pictures

    ``added`` : the settings of `datasets.spectrograms.workers`.
    """

    files: list[str] = positional("Sound or strain files, pictures, or folders of them.")
    out: str = option(MISSING, "Folder to write the pictures to.", metavar="FOLDER")
    overwrite: bool = option(False, "Replace pictures that exist at --out.")
    kind: str = option(
        "auto",
        "Kind of the files, such as sound; auto goes by the ends of their names.",
        metavar="auto|KIND",
    )
    at: float | None = option(
        None,
        "Time at the centre of the picture: GPS seconds for strain, seconds from the start for sound.",
    )
    workers: int | None = option(None, "Number of processes. Default: one per core.")
    cache_dir: str | None = option(None, CACHE_DIR, metavar="FOLDER")
    spectrogram: str | None = option(
        None,
        "Settings for all the files: a YAML file, text such as '{durations: [1, 4]}', or a preset, as for finetune.",
        metavar="FILE|TEXT|PRESET",
    )
    channel: str = option(
        "",
        "Strain: channel to read where files have several, such as H1:GDS-CALIB_STRAIN.",
        metavar="NAME",
    )
    axes: bool = option(
        False,
        "Draw the pictures with axes and a colour bar (dB for sound, energy for strain), for people.",
    )
    overlap: float = option(
        0.0, "Sound: overlap of neighbouring windows, as a fraction of the window."
    )
    rate: int | None = option(None, "Sound: sample rate in Hz. Default: inferred from the files.")
    window: float | None = option(
        None, "Sound: length of the window in seconds. Default: inferred from the files."
    )
    level: Literal["clip", "fixed", "pcen"] = option(
        "clip",
        "Sound: brightness scale. clip: white is the loudest point of the clip; fixed: white is full scale; pcen "
        "normalises each band.",
    )
    colour: str = option(
        "grey",
        "Sound: grey, windows (three window lengths as red, green and blue), or a colour map such as magma.",
        metavar="NAME",
    )
    size: tuple[int, int] = option((224, 224), "Sound: height and width of the picture in pixels.")
    samples: SampleSettings = SampleSettings()
    added: tuple[WorkersSettings, ...] = ()

    @property
    def sections(self) -> dict[str, Any]:
        added = {section.name: section for section in self.added}
        return {"": self, "samples": self.samples, **added}


def render(options: RenderSettings) -> tuple[list[tuple[Path, Path]], list[Rejected]]:
    """Render files to PNG pictures in a folder; subfolders of the files' common folder are kept.

    Returns
    -------
    (file, picture) pairs, and the rejected files.

    Raises
    ------
    SecondhandError : an invalid setting, no files, or a picture that exists already.
    """
    import pandas as pd

    from datasets.items.settings import SignalSettings
    from datasets.spectrograms.pictures import PictureCache
    from datasets.spectrograms.windows import cut_windows
    from datasets.strain.frames import file_at, with_channel

    listed, rejected = _by_kind(options.files, options.kind)
    for name in listed:
        kind = KINDS.get(name)
        if kind is None or (kind.settings() is None and not kind.photo):
            kinds = ", ".join([*drawn_kinds(), *photo_kinds()])
            raise SecondhandError(f"invalid settings: --kind {name!r} (must be auto, {kinds})")
        if options.axes and kind.photo:
            raise SecondhandError(
                f"--axes draws sound and strain, not {name}. Leave it out, or name such files alone"
            )
    names = _names([path for paths in listed.values() for path in paths])
    target = as_path(options.out)
    if target.exists() and not target.is_dir():
        raise SecondhandError(f"--out {options.out}: is a file. Name a folder")
    target.mkdir(parents=True, exist_ok=True)
    cache = PictureCache(options.cache_dir)
    planned, photos = [], list[tuple[str, Path]]()
    draw_photo: Callable[[str], bytes] | None = None
    for file_kind, paths in listed.items():
        of = KINDS[file_kind]
        if of.photo:
            draw_photo, paths, bad = _photos(of, paths, vars(options.samples), options.workers)
            rejected += bad
            photos = [(path, target / _picture_name(names[path], Part(path))) for path in paths]
            continue
        checks = check_files_isolated(of.open, paths)
        rejected += [check for check in checks if isinstance(check, Rejected)]
        paths = [p for p, check in zip(paths, checks, strict=True) if check is None]
        if paths:
            if options.channel and of.gps:
                named = {with_channel(path, options.channel): names[path] for path in paths}
                names, paths = names | named, [*named]
            chosen = SignalSettings(spectrogram=options.spectrogram).for_kind(file_kind)
            if of.recordings:
                values = {name: getattr(options, name) for name in SOUND}
                chosen |= {name: value for name, value in values.items() if value is not None}
            gps = math.nan if options.at is None else options.at
            frame = pd.DataFrame({"path": paths, "label": "", "gps": gps})
            rendering = of.spectrogram(frame, chosen)
            assert rendering is not None
            windows, bad = cut_windows(frame, rendering, overlap=options.overlap)
            rejected += bad
            parts = parts_of(windows)
            copies = [target / _picture_name(names[part.path], part) for part in parts]
            planned.append((parts, copies, rendering))
    copies_of_all = [*(copy for _, copies, _ in planned for copy in copies), *dict(photos).values()]
    existing = (copy for copy in copies_of_all if copy.exists())
    if not options.overwrite and (first := next(existing, None)) is not None:
        raise SecondhandError(
            f"--out {options.out}: {first} exists. Name another folder, or give --overwrite"
        )
    rendered = []
    if draw_photo is not None:
        drawn = check_files_isolated(draw_photo, [path for path, _ in photos], options.workers)
        for (path, copy), result in zip(photos, drawn, strict=True):
            if isinstance(result, Rejected):
                rejected.append(result)
            elif result is not None:
                rendered.append((as_path(path), _written(result, copy)))
    with contextlib.ExitStack() as stack:
        elsewhere = None
        if (others := next((one for one in options.added if one.chosen), None)) is not None:
            elsewhere = stack.enter_context(others.connected(options.workers))
        for parts, copies, rendering in planned:
            pictures: Sequence[Path | bytes | Rejected | None]
            if options.axes:
                pictures = _drawn(rendering, parts, options.workers)
                failed = [one for one in pictures if isinstance(one, Rejected)]
            else:
                pictures, failed = cache.render_all(
                    parts, rendering, workers=options.workers, elsewhere=elsewhere
                )
            rejected += failed
            for part, copy, picture in zip(parts, copies, pictures, strict=True):
                if isinstance(picture, Path | bytes):
                    data = picture if isinstance(picture, bytes) else picture.read_bytes()
                    rendered.append((as_path(file_at(part.path)), _written(data, copy)))
    return rendered, rejected


def _written(data: bytes, copy: Path) -> Path:
    copy.parent.mkdir(parents=True, exist_ok=True)
    write_beside(copy, data, durable=False)
    return copy


def _photos(
    kind: Kind, paths: Sequence[str], flags: Mapping[str, Any], workers: int | None
) -> tuple[Callable[[str], bytes], list[str], list[Rejected]]:
    """What draws pictures, by settings that are inferred from them; those that can be read, and the others."""
    from datasets.items import describe

    look = partial(kind.look, whole=True, settings=dict(flags))
    looks = check_files_isolated(look, paths, workers)
    bad = [look for look in looks if isinstance(look, Rejected)]
    found = {
        path: look
        for path, look in zip(paths, looks, strict=True)
        if not isinstance(look, Rejected) and look is not None
    }
    stored = [look.stored for look in found.values()]
    samples, how = kind.samples([one for one in stored if one is not None], flags)
    if flags["page"] is None and flags["channels"] is None:
        describe.log_lines(describe.pages_found(stored))
    describe.log_lines(describe.samples_found(samples, how, stored))
    return partial(_photo, samples), [*found], bad


def _photo(samples: PictureSettings | None, path: str) -> bytes:
    """PNG of a picture."""
    import io

    from datasets.images.opening import open_picture

    buffer = io.BytesIO()
    open_picture(path, samples=samples).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _drawn(
    rendering: SpectrogramSettings, parts: Sequence[Part], workers: int | None
) -> list[bytes | Rejected]:
    """Pictures with axes, drawn in processes; a crash costs the picture being drawn alone."""
    chunks = [[*parts[first : first + _CHUNK]] for first in range(0, len(parts), _CHUNK)]
    died: bytes | Rejected = Rejected("", CRASHED)
    drawn = list[bytes | Rejected]()
    with progress.step("Drawing", len(parts)) as advance:
        for _, pictures in in_parallel(partial(_draw, rendering), chunks, workers, died):
            drawn += pictures
            advance(len(drawn))
    return [
        Rejected(part.path, one.reason) if isinstance(one, Rejected) else one
        for part, one in zip(parts, drawn, strict=True)
    ]


def _draw(rendering: SpectrogramSettings, parts: Sequence[Part]) -> list[bytes | Rejected]:
    drawn = list[bytes | Rejected]()
    for part in parts:
        try:
            drawn.append(rendering.drawn(rendering.read(part), part))
        except BadFile as error:
            drawn.append(Rejected(part.path, error.reason))
    return drawn


def _by_kind(
    files: Iterable[str | os.PathLike[str]], kind: str
) -> tuple[dict[str, list[str]], list[Rejected]]:
    """Files, and the sound and strain files or else the pictures in folders, by kind; and the rejected files of other kinds."""
    paths: list[str] = []
    rejected: list[Rejected] = []
    drawn, photos = drawn_kinds(), photo_kinds()
    for name in files:
        name = contents(without_secrets(str(name)))
        if is_folder(name):
            inside, bad = files_below(name)
            rejected += bad
            signals = [path for path in inside if kind_of(path) in drawn]
            pictures = [path for path in inside if kind_of(path) in photos]
            inside = pictures if kind in photos else signals or pictures
            if not inside:
                raise SecondhandError(
                    f"{name}: no sound or strain files or pictures in this folder"
                )
            paths += inside
        else:
            paths.append(name)
    if not paths:
        raise SecondhandError("no files. Name sound or strain files, pictures, or folders of them")
    listed: dict[str, list[str]] = {}
    for path in dict.fromkeys(paths):
        file_kind = kind_of(path) if kind == "auto" else kind
        if file_kind in (*drawn, *photos) or kind != "auto":
            listed.setdefault(str(file_kind), []).append(path)
        else:
            why = "not a sound or strain file or picture by its ending; name its kind with --kind"
            rejected.append(Rejected(path, why))
    return listed, rejected


def _names(paths: list[str]) -> dict[str, Path]:
    """Unique name for the picture of each file, relative to the files' common folder."""
    full = [os.path.abspath(member(path)) for path in paths]
    base = os.path.commonpath(map(os.path.dirname, full)) if paths else ""
    names: dict[str, Path] = {}
    used: set[Path] = set()
    for path, full_path in zip(paths, full, strict=True):
        name = Path(os.path.relpath(full_path, base))
        short = name.with_suffix(".png")
        names[path] = name.with_name(f"{name.name}.png") if short in used else short
        used.add(names[path])
    return names


def _picture_name(name: Path, part: Part) -> Path:
    """Name of the picture of a file, or of one of its windows."""
    moment = "" if part.start is None else f"_{part.start:08.2f}s"
    return name.with_name(f"{name.stem}{moment}.png")


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit status."""
    others = WORKERS.ours().values()
    parser = Parser(__doc__, RenderSettings, SampleSettings, *others, files=True)
    try:
        values = parser.chosen(argv)
        (samples,) = take_sections(values, (SampleSettings,))
        added = take_sections(values, others)
        settings = RenderSettings(**values, samples=samples, added=added)
        settings.check()
        return _run(settings)
    except SecondhandError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2


def _run(options: RenderSettings) -> int:
    logging.basicConfig(format="%(levelname)s: %(message)s", stream=sys.stderr)
    with logger_levels(logging.INFO, "datasets.items"):  # how pictures are drawn
        rendered, rejected = render(options)
    for source, picture in rendered:
        print(f"{source}\t{picture}")
    for item in rejected:
        print(f"left out: {item}", file=sys.stderr)
    return 3 if rejected else 0


if __name__ == "__main__":
    raise SystemExit(main())
