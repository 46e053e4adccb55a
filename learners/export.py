"""``python -m learners.export MODEL``: a model as one file that other programs run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from datasets.core.errors import SecondhandError
from learners.cli import console
from learners.cli.flags import bare_parser

log = logging.getLogger(__name__)


def main(argv: Sequence[str] | None = None) -> int:
    """Parse, write, check, print the names of the files. Returns 0."""
    parser = bare_parser(
        "learners.export",
        "A model as one file with its preprocessing's arithmetic and its temperature "
        "inside: uint8 pixels [n, 3, size, size] in; calibrated probabilities, logits and features "
        "out. It is checked against the predictor before it gets its name. Exit status 0, 2 for a "
        "wrong call or a model that cannot be exported.",
    )
    parser.add_argument("model", help="model folder, as RUN/model or hf:USER/NAME")
    parser.add_argument(
        "--onnx", action="store_true", help="for ONNX Runtime and its like; so if neither is named"
    )
    parser.add_argument("--torch", action="store_true", help="for torch.export.load")
    parser.add_argument(
        "--out",
        type=Path | None,
        default=None,
        help="the file without its ending; MODEL itself if not given: RUN/model.onnx, RUN/model.pt2",
    )
    parser.add_argument("--overwrite", action="store_true", help="replace files that are there")
    settings = parser.parse_args(argv)

    console.log_to_terminal()
    from learners.model import load_bundle, model_folder

    model = model_folder(settings.model)
    stem = settings.out or model.resolve()
    endings = [".onnx"] if settings.onnx or not settings.torch else []
    endings += [".pt2"] if settings.torch else []
    files = [stem.with_name(stem.name + ending) for ending in endings]
    there = [str(file) for file in files if file.exists()]
    if there and not settings.overwrite:
        raise SecondhandError(
            f"{', '.join(there)}: there already; give --overwrite, or another --out"
        )
    from learners.inference import export_onnx, export_torch, notes

    bundle = load_bundle(model)
    for note in notes(bundle):
        log.info("%s", note)
    for file in files:
        (export_onnx if file.suffix == ".onnx" else export_torch)(bundle, file)
        print(file)
    return 0


if __name__ == "__main__":
    console.run(main)
