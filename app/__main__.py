"""``python -m app [MODEL...]``: a web page on this machine, over model folders or the newest run."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import time
import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from datasets.core.errors import SecondhandError
from datasets.core.program import installed_commands
from learners.acceleration import keep_memory_on_cpu
from learners.cli import console
from learners.cli.flags import bare_parser

log = logging.getLogger(__name__)

#: Addresses that only this computer reaches.
LOCAL = ("127.0.0.1", "localhost", "::1")
DEMO = (
    "--data demo:digits --size 64 --epochs 1 --bs 32 --no-flip "
    "--min-scale 0.7 --threshold 0.8 --out runs/demo"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, load, serve until Ctrl-C."""
    gc.disable()  # a faster start: no collections while modules and models load
    try:
        return _main(argv)
    finally:
        gc.enable()
        # Frozen objects are not freed at the interpreter's end, and nanobind (of torch's Triton) reports
        # such objects of its own as leaks.
        gc.unfreeze()


def _main(argv: Sequence[str] | None) -> int:
    parser = bare_parser(
        "app",
        "Serve a web page for one or several models. By default only this computer can open it.",
        usage="[MODEL...]",
        examples=(
            "python -m app                                     # the newest model in runs/",
            "python -m app runs/photos/model runs/birds/model",
            "python -m app runs/photos/model --label new/ --feedback corrections/",
            "python -m app --train                             # train a model from the page",
            "python -m app runs/photos/model --host 0.0.0.0 --auth NAME:PASSWORD",
        ),
    )
    parser.add_argument(
        "models",
        nargs="*",
        default=[],
        help="Model folders, or hf:USER/NAME. Default: the newest model in runs/.",
    )
    add = parser.add_argument_group("network and access").add_argument
    add("--port", type=int, default=7860, metavar="N", help="Port of the page.")
    text = "Address to listen on; 0.0.0.0 lets other computers of the network open the page."
    add("--host", type=str, default="127.0.0.1", metavar="ADDRESS", help=text)
    name = "Further host name under which visitors reach the page, for example behind a proxy; repeatable."
    add("--allow-host", action="append", default=[], metavar="NAME", help=name)
    add("--share", action="store_true", help="Also make a public link through Gradio's servers.")
    who = "Let in only visitors with this name and password; repeatable."
    add("--auth", action="append", default=[], metavar="NAME:PASSWORD", help=who)
    add = parser.add_argument_group("features").add_argument
    corrections = (
        "Let visitors correct predictions, and save the corrections in this folder. Default: off."
    )
    add("--feedback", type=str | None, default=None, metavar="FOLDER", help=corrections)
    train = (
        "Add a tab that trains a model from a folder on this machine, and writes its run into this folder "
        "(default: runs/). For visitors of other computers it needs --auth. Default: off."
    )
    add("--train", nargs="?", type=str, const="runs", default=None, metavar="FOLDER", help=train)
    label = (
        "Add a tab to label the files of this folder, in the order that the first model suggests, or those of a "
        "table that learners.audit drew, which gets the labels. Those of a folder go to NAME-labels.csv in the "
        "folder of --feedback, else in the current one. Default: off."
    )
    add("--label", type=str | None, default=None, metavar="PATH", help=label)
    pool = (
        "Add a button that finds files similar to a prediction, with the first model, in this folder or .parquet "
        "file (of search --embeddings). Default: off."
    )
    add("--pool", type=str | None, default=None, metavar="PATH", help=pool)
    device = "Device: auto, cpu, cuda or cuda:N."
    add("--device", type=str, default="auto", metavar="NAME", help=device)
    add = parser.add_argument_group("limits").add_argument
    add("--max-mb", type=int, default=50, metavar="N", help="Maximum size of one file in MB.")
    most = "Maximum number of files that a visitor can drop at once."
    add("--max-files", type=int, default=64, metavar="N", help=most)
    waiting = (
        "Maximum number of requests that wait for a model; further ones get the answer 'busy'."
    )
    add("--queue", type=int, default=32, metavar="N", help=waiting)
    add("--bs", type=int, default=8, metavar="N", help="Maximum number of requests in one batch.")
    add("--keep", type=float, default=30.0, metavar="X", help="Minutes to keep an uploaded file.")
    options = parser.parse_args(argv)
    console.log_to_terminal()
    keep_memory_on_cpu(options.device)
    auth = [_name_and_password(pair) for pair in options.auth]
    local = options.host in LOCAL
    if options.train is not None:
        if not auth and (options.share or options.allow_host or not local):
            raise SecondhandError(
                "--train lets visitors read and write files of this machine. For visitors of other computers (--host, "
                "--allow-host, --share) also give --auth NAME:PASSWORD"
            )
        if (Path(options.train) / "config.json").is_file():
            raise SecondhandError(
                f"--train {options.train} is a model folder. Name models first: python -m app {options.train} --train"
            )
    if not local and not auth:
        print(
            f"warning: --host {options.host} lets everybody who reaches this machine use the page; "
            "--auth NAME:PASSWORD asks for a password",
            file=sys.stderr,
        )
    return _serve(options, auth)


def _serve(options: Any, auth: list[tuple[str, str]]) -> int:
    """Open the models and serve the page until Ctrl-C."""
    from app.server import free_port, serve
    from app.serving import Limits, load_each

    port = free_port(options.host, options.port)  # an error now, not after the models
    limits = Limits(
        options.max_mb, options.max_files, options.queue, options.bs, keep=60 * options.keep
    )
    training = None
    folders = list(options.models)
    if options.train is not None:
        from app.training import Training

        training = Training(Path(options.train), options.device)
    elif not folders:
        folders = [newest_model() or train_demo()]
    models, failed = load_each(folders, limits=limits, device=options.device)
    for error in failed.values():
        # Labels and pools belong to the first model that is named.
        if (not models and training is None) or options.label or options.pool:
            raise error
        print(f"warning: {error}", file=sys.stderr)
    log.info("Building the page …")
    # A plain kill lets the uploads be deleted, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with serve(
        models,
        limits=limits,
        host=options.host,
        port=port,
        share=options.share,
        auth=auth,
        feedback=Path(options.feedback) if options.feedback else None,
        label=Path(options.label) if options.label else None,
        pool=Path(options.pool) if options.pool else None,
        training=training,
        names=options.allow_host,
        failed=failed,
    ) as url:
        gc.freeze()
        gc.enable()
        print(f"{', '.join(models) or 'The tab Train'} on {url}  (Ctrl-C ends it)", flush=True)
        if options.host in LOCAL and at_a_desktop():
            webbrowser.open(url)
        _wait()
    return 0


def at_a_desktop() -> bool:
    """Whether the command was typed in a terminal on the screen of this machine."""
    screen = sys.platform in ("darwin", "win32") or {"DISPLAY", "WAYLAND_DISPLAY"} & {*os.environ}
    return sys.stdout.isatty() and bool(screen) and "SSH_CONNECTION" not in os.environ


def _wait() -> None:
    """Until Ctrl-C or a plain kill."""
    with suppress(KeyboardInterrupt):
        while True:
            time.sleep(3600)


def newest_model(root: Path = Path("runs")) -> Path | None:
    """The model folder of the runs in a folder that was written last; None without any."""
    from learners.model.bundle import newest_models

    return next(iter(newest_models(root)), None)


def train_demo() -> Path:
    """Model folder of handwritten digits, fine-tuned now from the embedded network.

    In its own process, because the page does not need the training code.
    """
    print(
        "no model in runs/: training a demo on the handwritten digits of scikit-learn first (under a "
        "minute). To serve your own model, name its folder.",
        file=sys.stderr,
    )
    training = subprocess.run(
        [sys.executable, *installed_commands("-m learners.finetune").split(), *DEMO.split()],
        stdout=sys.stderr,
    )
    model = newest_model()
    if training.returncode or model is None:
        raise SecondhandError(
            "the demo model could not be trained; the reason stands above. Name a model folder instead"
        )
    return model


def _name_and_password(pair: str) -> tuple[str, str]:
    name, colon, password = pair.partition(":")
    if not (name and colon and password):
        raise SecondhandError("--auth: the name or the password is missing; write NAME:PASSWORD")
    return name, password


if __name__ == "__main__":
    console.run(main)
