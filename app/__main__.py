"""``python -m app [MODEL...]``: a web page on this machine, over model folders or the newest run."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from datasets.core.errors import SecondhandError
from datasets.core.program import as_called
from learners.acceleration import keep_memory_on_cpu
from learners.cli import console
from learners.cli.flags import bare_parser

DEMO = (
    "--data demo:digits --size 64 --epochs 1 --bs 32 --no-flip "
    "--min-scale 0.7 --threshold 0.8 --out runs/demo"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, load, serve until Ctrl-C."""
    gc.disable()  # while modules and models are loaded, and of them afterwards: a quicker start
    try:
        return _main(argv)
    finally:
        gc.enable()
        # What is frozen is not freed at the interpreter's end either, and nanobind, which binds
        # torch's Triton, calls every object of its own that is left then a leak.
        gc.unfreeze()


def _main(argv: Sequence[str] | None) -> int:
    parser = bare_parser(
        "app",
        "A web page over one or several models. Bound to 127.0.0.1, with no share link.",
    )
    parser.add_argument(
        "models",
        nargs="*",
        default=[],
        help="model folders; the newest of runs/ if none is given; hf:USER/NAME of the hub",
    )
    add = parser.add_argument_group("where").add_argument
    add("--port", type=int, default=7860, help="port")
    add("--host", type=str, default="127.0.0.1", help="0.0.0.0: all of this machine's addresses")
    name = "a name by which visitors reach the page, as behind a proxy; may be given more than once"
    add("--allow-host", action="append", default=[], metavar="NAME", help=name)
    add("--share", action="store_true", help="also a public link, through Gradio's servers")
    who = "who may enter; may be given more than once"
    add("--auth", action="append", default=[], metavar="NAME:PASSWORD", help=who)
    add = parser.add_argument_group("what").add_argument
    corrections = "folder for corrections by visitors; off if not given"
    add("--feedback", type=str | None, default=None, help=corrections)
    label = "folder whose files are labelled on the page, for the first model; off if not given"
    add("--label", type=str | None, default=None, metavar="POOL", help=label)
    pool = (
        "folder, or .parquet of learners.search, in which the first model finds more like an answer"
    )
    add("--pool", type=str | None, default=None, help=pool)
    add("--device", type=str, default="auto", help="auto, cpu, cuda or cuda:N")
    add = parser.add_argument_group("limits").add_argument
    add("--max-mb", type=int, default=50, help="megabytes of one file")
    add("--max-files", type=int, default=64, help="files in one table")
    waiting = "requests that may wait for a model; the next is told: busy"
    add("--queue", type=int, default=32, help=waiting)
    add("--bs", type=int, default=8, help="waiting requests that are answered together")
    add("--keep", type=float, default=30.0, help="minutes that an uploaded file is kept")
    options = parser.parse_args(argv)
    console.log_to_terminal()
    keep_memory_on_cpu(options.device)
    from app.server import serve
    from app.serving import Limits, load
    from learners.model import model_folder

    limits = Limits(
        options.max_mb, options.max_files, options.queue, options.bs, keep=60 * options.keep
    )
    auth = [_name_and_password(pair) for pair in options.auth]
    folders = [model_folder(name) for name in options.models] or [newest_model() or train_demo()]
    if options.host not in ("127.0.0.1", "localhost", "::1") and not auth:
        print(
            f"warning: on {options.host} everybody who reaches this machine can use the page; "
            "--auth NAME:PASSWORD asks for a password",
            file=sys.stderr,
        )
    models = load(folders, limits=limits, device=options.device)
    # A plain kill lets the uploads be deleted, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with serve(
        models,
        host=options.host,
        port=options.port,
        share=options.share,
        auth=auth,
        feedback=Path(options.feedback) if options.feedback else None,
        label=Path(options.label) if options.label else None,
        pool=Path(options.pool) if options.pool else None,
        names=options.allow_host,
    ) as url:
        gc.freeze()
        gc.enable()
        print(f"{', '.join(models)} on {url}  (Ctrl-C ends it)", flush=True)
        _wait()
    return 0


def _wait() -> None:
    """Until Ctrl-C or a plain kill."""
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


def newest_model(root: Path = Path("runs")) -> Path | None:
    """The model folder that was written last, None where there is none."""
    models = sorted(root.glob("*/model/config.json"), key=lambda file: file.stat().st_mtime)
    return models[-1].parent if models else None


def train_demo() -> Path:
    """A model of handwritten digits, fine-tuned now from the embedded network: there is no other.

    In a process of its own: the page has no use for the training half.
    """
    print(
        "no model under runs/: fine-tuning a demo on handwritten digits that ship with scikit-learn "
        "(two short epochs, under a minute); name a model folder to serve your own",
        file=sys.stderr,
    )
    training = subprocess.run(
        [sys.executable, *as_called("-m learners.finetune").split(), *DEMO.split()],
        stdout=sys.stderr,
    )
    model = newest_model()
    if training.returncode or model is None:
        raise SecondhandError("the demo could not be trained (see above): name a model folder")
    return model


def _name_and_password(pair: str) -> tuple[str, str]:
    name, colon, password = pair.partition(":")
    if not (name and colon and password):
        raise SecondhandError("--auth: give NAME:PASSWORD, both not empty")
    return name, password


if __name__ == "__main__":
    console.run(main)
