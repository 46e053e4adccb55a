"""``python -m learners.share MODEL USER/NAME`` or ``--zip model.zip``: publish a model or write an archive."""

from __future__ import annotations

import logging
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from datasets.core.errors import SecondhandError
from datasets.core.files import file_beside
from datasets.core.program import installed_commands
from learners.cli import console
from learners.cli.flags import bare_parser

log = logging.getLogger(__name__)

CARD = """
## This archive

`python predict.py FILE...` predicts pictures with `model.onnx`. It needs only `pip install numpy
pillow onnxruntime`. `picture.py` resizes and crops pictures as in training. Compared with the model
folder: {notes}.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0, or 1 if an existing target was not replaced."""
    parser = bare_parser(
        "learners.share",
        "Share a model without its data. USER/NAME uploads the model folder to the Hugging Face hub, where others "
        "use it as hf:USER/NAME. --zip writes an archive (pictures only) with the ONNX file, a model card, and a "
        "short program that predicts with numpy, pillow and onnxruntime. Exit status: 0; 1 if an existing target was not "
        "replaced; 2 for a wrong call.",
        usage="MODEL (USER/NAME | --zip FILE)",
        examples=(
            "python -m learners.share runs/photos/model USER/photos --private",
            "python -m learners.share runs/photos/model --zip photos.zip --report runs/photos/report/index.html",
        ),
    )
    parser.add_argument("model", help="Model folder, such as runs/photos/model.")
    parser.add_argument(
        "to", nargs="?", type=str | None, help="Repository on the hub, as USER/NAME."
    )
    parser.add_argument(
        "--private", action="store_true", help="Make a new repository on the hub private."
    )
    text = "Archive to write, such as model.zip."
    parser.add_argument("--zip", type=Path | None, default=None, metavar="FILE", help=text)
    parser.add_argument(
        "--report",
        type=Path | None,
        default=None,
        metavar="FILE",
        help="With --zip: report to include, such as runs/photos/report/index.html. It shows some of the training "
        "pictures.",
    )
    parser.add_argument(
        "--overwrite",
        action="store_true",
        help="Replace an existing archive or repository without asking.",
    )
    options = parser.parse_args(argv)
    console.log_to_terminal()
    model, to, file, report = Path(options.model), options.to, options.zip, options.report
    if (to is None) == (file is None):
        raise SecondhandError(
            "The target is missing. Give USER/NAME (on the hub) or --zip model.zip, but not both"
        )
    if to is not None:
        if report is not None:
            raise SecondhandError(
                f"--report {report}: reports are included in archives only. Add --zip or leave --report out"
            )
        from learners.model import publish

        address = publish(model, to, private=options.private, overwrite=options.overwrite)
        if address is None:
            if not replaced(f"{to} on the hub"):
                return 1
            address = publish(model, to, private=options.private, overwrite=True)
        print(address)
        return 0
    if options.private:
        raise SecondhandError("--private is for models on the hub, not for --zip. Leave it out")
    if report is not None and not report.is_file():
        raise SecondhandError(
            f"--report {report} does not exist. Give a report, such as RUN/report/index.html"
        )
    if file.suffix != ".zip":
        raise SecondhandError(
            f"--zip {file} does not end with .zip. Give an archive, such as model.zip"
        )
    check(model)
    if file.exists() and not (options.overwrite or replaced(str(file))):
        return 1
    share(model, file, report)
    print(file)
    return 0


def replaced(what: str) -> bool:
    """Ask on the terminal whether to replace an existing target; without a terminal raise SecondhandError."""
    if not sys.stdin.isatty():
        raise SecondhandError(f"{what} already exists. Give --overwrite or another name")
    print(f"{what} already exists. Replace it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def check(model: Path) -> None:
    """Raise SecondhandError unless ``model`` is a model folder for pictures with one class per item."""
    from learners.model import load_bundle

    bundle = load_bundle(model, network=False)
    if not bundle.decider.exclusive:
        raise SecondhandError(
            f"{model} is a multi-label model, but the program in the archive predicts one class per picture. Share the "
            "model folder instead, which is safe to open"
        )
    if (spectrogram := bundle.spectrogram) is not None:
        raise SecondhandError(
            f"{model} is a model for {spectrogram['kind']}, but the program in the archive cannot render spectrograms. "
            "Share the model folder instead, which is safe to open, and predict with "
            + installed_commands(
                "python -m learners.predict MODEL FILE... (docs/sharing.md: without torch)"
            )
        )


def share(model: Path, file: Path, report: Path | None = None) -> None:
    """Write the archive of a model folder that `check` accepts, atomically.

    Raises `SecondhandError` for a network that cannot be exported to ONNX.
    """
    from datasets.images import standalone
    from learners.inference import export_limitations, export_onnx
    from learners.model import card, load_bundle

    bundle = load_bundle(model)
    limitations = export_limitations(bundle)
    for note in limitations:
        log.info("The ONNX file: %s", note)
    readme = card(bundle) + CARD.format(notes="; ".join(limitations) or "none")
    with file_beside(file) as beside:
        network = beside.with_name("model.onnx")
        export_onnx(bundle, network)
        with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
            name = file.stem
            archive.write(network, f"{name}/model.onnx")
            archive.writestr(f"{name}/README.md", readme)
            archive.write(
                Path(__file__).parent / "inference/shared_program.py", f"{name}/predict.py"
            )
            archive.write(standalone.__file__, f"{name}/picture.py")
            if report is not None:
                archive.write(report, f"{name}/report.html")


if __name__ == "__main__":
    console.run(main)
