"""usage: python -m app [MODEL...] [flags]

Serve a web page for one or several models. By default only this computer can open it.

examples:
  python -m app                                     # the newest model in runs/
  python -m app runs/photos/model runs/birds/model
  python -m app runs/photos/model --label new/ --feedback corrections/
  python -m app --train                             # train a model from the page
  python -m app runs/photos/model --host 0.0.0.0 --auth NAME:PASSWORD
"""

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
from dataclasses import dataclass
from pathlib import Path

from datasets.core.errors import SecondhandError
from datasets.core.options import Checked, option, positional
from datasets.core.program import installed_commands
from learners.acceleration import keep_memory_on_cpu
from learners.cli import console
from learners.cli.flags import read_call

log = logging.getLogger(__name__)

#: Addresses that only this computer reaches.
LOCAL = ("127.0.0.1", "localhost", "::1")
DEMO = (
    "--data demo:digits --size 64 --epochs 1 --bs 32 --no-flip "
    "--min-scale 0.7 --threshold 0.8 --out runs/demo"
)


@dataclass(kw_only=True)
class LimitSettings(Checked):
    """limits"""

    max_mb: int = option(50, "Maximum size of one file in MB.")
    max_files: int = option(64, "Maximum number of files that a visitor can drop at once.")
    queue: int = option(
        32, "Maximum number of requests that wait for a model; further ones get the answer 'busy'."
    )
    bs: int = option(8, "Maximum number of requests in one batch.")
    keep: float = option(30.0, "Minutes to keep an uploaded file.")


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
    label: Path | None = option(
        None,
        "Add a tab to label the files of this folder, in the order that the first model suggests, or those of a "
        "table that learners.audit drew, which gets the labels. Those of a folder go to NAME-labels.csv in the "
        "folder of --feedback, else in the current one. Default: off.",
    )
    pool: Path | None = option(
        None,
        "Add a button that finds files similar to a prediction, with the first model, in this folder or .parquet "
        "file (of search --embeddings). Default: off.",
    )
    device: str = option("auto", "Device: auto, cpu, cuda or cuda:N.", metavar="NAME")


@dataclass(kw_only=True)
class PageSettings(FeatureSettings, LimitSettings):
    """network and access"""

    models: list[str] = positional(
        "Model folders, or hf:USER/NAME. Default: the newest model in runs/.", []
    )
    port: int = option(7860, "Port of the page.")
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

    def conflicts(self) -> dict[str, object]:
        away = self.share or self.allow_host or not self.local
        return {
            "--train with --host, --allow-host or --share, without --auth (it lets visitors read and write files of "
            "this machine: give --auth NAME:PASSWORD)": self.train and away and not self.auth,
            f"--train {self.train}, which is a model folder (name models first: python -m app {self.train} --train)": (
                self.train and (self.train / "config.json").is_file()
            ),
        }


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
    options = read_call(PageSettings, argv, __doc__)
    console.log_to_terminal()
    keep_memory_on_cpu(options.device)
    auth = [_name_and_password(pair) for pair in options.auth]
    if not options.local and not auth:
        print(
            f"warning: --host {options.host} lets everybody who reaches this machine use the page; "
            "--auth NAME:PASSWORD asks for a password",
            file=sys.stderr,
        )
    return _serve(options, auth)


def _serve(options: PageSettings, auth: list[tuple[str, str]]) -> int:
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

        training = Training(options.train, options.device)
    elif not folders:
        folders = [str(newest_model() or train_demo())]
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
        feedback=options.feedback,
        label=options.label,
        pool=options.pool,
        training=training,
        names=options.allow_host,
        failed=failed,
    ) as url:
        gc.freeze()
        gc.enable()
        print(f"{', '.join(models) or 'The tab Train'} on {url}  (Ctrl-C ends it)", flush=True)
        if options.local and at_a_desktop():
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
