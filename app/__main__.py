"""usage: secondhand app [MODEL...] [flags]

Serve a web page for one or several models. By default only this computer can open it.

examples:
  secondhand app                                     # the newest model in runs/
  secondhand app runs/photos/model runs/birds/model
  secondhand app runs/photos/model --feedback corrections/
  secondhand app --train                             # train a model from the page
  secondhand app runs/photos/model --host 0.0.0.0 --auth NAME:PASSWORD
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
from pathlib import Path

from app.settings import PageSettings
from app.tabs import sections
from datasets.core.errors import SecondhandError
from datasets.core.program import installed_commands
from learners.cli import console
from learners.cli.commands import with_sections
from learners.cli.flags import call_parser
from learners.machine.acceleration import keep_memory_on_cpu

log = logging.getLogger(__name__)

DEMO = (
    "--data demo:digits --size 64 --epochs 1 --bs 32 --no-flip "
    "--min-scale 0.7 --threshold 0.8 --keep-known 0.8 --out runs/demo"
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
    parser = call_parser(__doc__, PageSettings, *sections())
    settings = with_sections(PageSettings, sections(), parser.chosen(argv))
    settings.check()
    console.log_to_terminal()
    keep_memory_on_cpu(settings.device)
    if not settings.local and not settings.auth:
        print(
            f"warning: --host {settings.host} lets everybody who reaches this machine use the page; "
            "--auth NAME:PASSWORD asks for a password",
            file=sys.stderr,
        )
    from app.server import free_port, serve
    from app.serving import load_each

    free_port(settings.host, settings.port)  # an error now, not after the models
    if not settings.models and settings.train is None:
        settings.models = [str(newest_model() or train_demo())]
    models, failed = load_each(settings)
    for error in failed.values():
        # What fields add belongs to the first model that is named.
        asked = any(section != type(section)() for section in settings.added)
        if asked or (not models and settings.train is None):
            raise error
        print(f"warning: {error}", file=sys.stderr)
    log.info("Building the page …")
    # A plain kill lets the uploads be deleted, as Ctrl-C does.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with serve(models, settings, failed) as url:
        gc.freeze()
        gc.enable()
        print(f"{', '.join(models) or 'The tab Train'} on {url}  (Ctrl-C ends it)", flush=True)
        if settings.local and at_a_desktop():
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


if __name__ == "__main__":
    console.run(main)
