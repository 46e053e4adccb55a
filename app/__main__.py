"""``python -m app [MODEL]``: a web page on this machine, over a model folder or the newest run."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from datasets.errors import SecondhandError
from learners import _command


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, load, serve until Ctrl-C."""
    import jsonargparse

    parser = jsonargparse.ArgumentParser(
        prog="python -m app",
        description="A web page over a model. Bound to 127.0.0.1, with no share link.",
    )
    parser.add_argument("model", nargs="?", help="model folder; the newest of runs/ if not given")
    parser.add_argument("--port", type=int, default=7860, help="port on 127.0.0.1")
    settings = parser.parse_args(argv)
    # Gradio asks its makers' servers for news unless told not to.
    os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")
    _command.log_to_terminal()
    folder = Path(settings.model) if settings.model else newest_model()
    from app.interface import MAX_UPLOAD, build_page
    from learners.predictor import Predictor

    page = build_page(Predictor(folder))
    print(f"{folder} on http://127.0.0.1:{settings.port}", flush=True)
    page.launch(
        server_name="127.0.0.1",
        server_port=settings.port,
        share=False,
        max_file_size=MAX_UPLOAD,
        quiet=True,
    )
    return 0


def newest_model(root: Path = Path("runs")) -> Path:
    """The model folder that was written last.

    Raises
    ------
    SecondhandError : there is none.
    """
    models = sorted(root.glob("*/model/config.json"), key=lambda file: file.stat().st_mtime)
    if not models:
        raise SecondhandError(f"no model under {root}/: run `make demo`, or name a model folder")
    return models[-1].parent


if __name__ == "__main__":
    _command.run(main)
