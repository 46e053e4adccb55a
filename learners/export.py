"""usage: python -m learners.export MODEL [flags]

Export a model as one ONNX file that includes normalisation and temperature scaling. Input: uint8 pixels [n, 3,
height, width]. Outputs: calibrated probabilities, logits and features. The file is written only if it agrees with
the model. With --inside it is model.onnx of the model folder itself, with which predictions on a CPU start fast and need
no PyTorch: a training on a CPU writes it, one on a GPU does not. Exit status: 0; 2 for a wrong call or a model that cannot be exported.

examples:
  python -m learners.export runs/photos/model
  python -m learners.export runs/photos/model --out photos.onnx --overwrite
  python -m learners.export runs/photos/model --inside
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from datasets.cli.conflicts import Conflict
from datasets.cli.options import Checked, option, positional
from datasets.core.errors import SecondhandError
from learners.cli import console
from learners.cli.commands import model_help
from learners.cli.flags import read_call

log = logging.getLogger(__name__)


@dataclass(kw_only=True)
class ExportSettings(Checked):
    """export"""

    model: str = positional(model_help)
    out: Path | None = option(
        None, "ONNX file to write. Default: model.onnx beside the model folder.", metavar="FILE"
    )
    inside: bool = option(
        False, "Write model.onnx of the model folder itself, for predictions on a CPU."
    )
    overwrite: bool = option(False, "Replace an existing file.")

    conflicts = (Conflict("out", "inside", "the file of --inside lies in the model folder"),)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Returns 0."""
    settings = read_call(ExportSettings, argv, __doc__)

    console.log_to_terminal()
    from learners.model.bundle import load_bundle
    from learners.model.places import model_folder

    model = model_folder(settings.model)
    if settings.inside:
        print(_write_inside(model, settings.overwrite))
        return 0
    file = settings.out or Path(os.path.realpath(model) + ".onnx")
    if file.suffix != ".onnx":
        raise SecondhandError(
            f"--out {file} does not end with .onnx. Give a file such as {file.name}.onnx"
        )
    if file.exists() and not settings.overwrite:
        raise SecondhandError(f"--out {file} already exists. Give --overwrite or another --out")
    from learners.inference.exporting import export_limitations, export_onnx

    bundle = load_bundle(model)
    for note in export_limitations(bundle):
        log.info("The ONNX file: %s", note)
    export_onnx(bundle, file)
    print(file)
    return 0


def _write_inside(model: Path, overwrite: bool) -> Path:
    """Write ``model.onnx`` of a model folder; return its path."""
    from learners.inference.exporting import write_network
    from learners.model.bundle import ONNX, load_bundle, put_onnx

    bundle = load_bundle(model)
    if bundle.onnx is not None and not overwrite:
        raise SecondhandError(f"{bundle.onnx} already exists. Give --overwrite")
    put_onnx(bundle, model, write_network)
    return model / ONNX


if __name__ == "__main__":
    console.run(main)
