"""``python -m app [MODEL...]``: a web page on this machine, over model folders or the newest run."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
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
    try:
        with ExitStack() as loading:
            loading.enter_context(_uncollected())
            return _main(argv, loading)
    finally:
        # What is frozen is not freed at the interpreter's end either, and nanobind, which binds
        # torch's Triton, calls every object of its own that is left then a leak.
        gc.unfreeze()


def _main(argv: Sequence[str] | None, loading: ExitStack) -> int:
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
    asked = parser.parse_args(argv)
    console.log_to_terminal()
    keep_memory_on_cpu(asked.device)
    from app.server import serve
    from app.serving import Limits, load
    from learners.model import model_folder

    limit = Limits(asked.max_mb, asked.max_files, asked.queue, asked.bs, keep=60 * asked.keep)
    auth = [_name_and_password(pair) for pair in asked.auth]
    folders = [model_folder(name) for name in asked.models] or [newest_model() or train_demo()]
    if asked.host not in ("127.0.0.1", "localhost", "::1") and not auth:
        print(
            f"warning: on {asked.host} everybody who reaches this machine can use the page; "
            "--auth NAME:PASSWORD asks for a password",
            file=sys.stderr,
        )
    models = load(folders, limits=limit, device=asked.device)
    ended = _ended_by_kill()  # before anybody can see that the page is there
    with serve(
        models,
        host=asked.host,
        port=asked.port,
        share=asked.share,
        auth=auth,
        feedback=Path(asked.feedback) if asked.feedback else None,
        limits=limit,
        pools=(
            Path(asked.label) if asked.label else None,
            Path(asked.pool) if asked.pool else None,
        ),
        names=asked.allow_host,
    ) as url:
        loading.close()
        print(f"{', '.join(models)} on {url}  (Ctrl-C ends it)", flush=True)
        _wait(ended)
    return 0


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection while modules and models are loaded, nor of them afterwards: a quicker start."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


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
    ran = subprocess.run(
        [sys.executable, *as_called("-m learners.finetune").split(), *DEMO.split()],
        stdout=sys.stderr,
    )
    model = newest_model()
    if ran.returncode or model is None:
        raise SecondhandError("the demo could not be trained (see above): name a model folder")
    return model


def _name_and_password(pair: str) -> tuple[str, str]:
    name, colon, password = pair.partition(":")
    if not (name and colon and password):
        raise SecondhandError("--auth: give NAME:PASSWORD, both not empty")
    return name, password


def _ended_by_kill() -> threading.Event:
    """Set by a plain kill, so that it lets the uploads be deleted, as Ctrl-C does."""
    import signal

    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ended.set())
    return ended


def _wait(ended: threading.Event) -> None:
    """Until Ctrl-C or a plain kill."""
    with suppress(KeyboardInterrupt):
        while not ended.wait(3600):
            pass


if __name__ == "__main__":
    console.run(main)
