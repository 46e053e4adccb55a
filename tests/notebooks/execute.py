"""Run notebooks in a new kernel, and store them with their output.

A notebook is a pair: ``NAME.py`` in jupytext's percent format, which is edited, and ``NAME.ipynb``,
which this command makes from it:

    python -m tests.notebooks.execute [NAME...]
"""

from __future__ import annotations

import base64
import io
import os
import sys
from pathlib import Path

import jupytext
import nbformat
from nbclient import NotebookClient
from PIL import Image

from learners.machine.acceleration import SLEEPING

ROOT = Path(__file__).parents[2]
NOTEBOOKS = ROOT / "notebooks"
CELL_SECONDS = 300


def names() -> list[str]:
    """Return the names of all notebooks, by either half of the pair."""
    files = [*NOTEBOOKS.glob("*.py"), *NOTEBOOKS.glob("*.ipynb")]
    return sorted({file.stem for file in files})


def execute(script: Path) -> nbformat.NotebookNode:
    """Run a ``.py`` of the percent format as a notebook, in the project's folder.

    Raises
    ------
    nbclient.exceptions.CellExecutionError : a cell raised an error.
    ValueError : a cell wrote a warning, which readers would see in red.
    """
    notebook = jupytext.read(script)
    # The packages beside this file, not those of another installed copy.
    environment = {**SLEEPING, **os.environ}  # as the commands set it for themselves
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    )
    environment.pop("MPLBACKEND", None)  # the kernel draws into the notebook
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT)}},
    )
    client.execute(env=environment)
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # times of the run would change every diff
        if cell.cell_type == "code":
            for warning in (o.text for o in cell.outputs if o.get("name") == "stderr"):
                raise ValueError(
                    f"{script}: this cell writes a warning:\n{cell.source}\n\n{warning}"
                )
            for data in (o.data for o in cell.outputs if "image/png" in o.get("data", {})):
                lighten(data)
    notebook.metadata.pop("language_info", None)
    return notebook


def lighten(data: dict[str, str]) -> None:
    """Reduce a drawing to 256 colours, or write JPEG if that is smaller, as for noise."""
    png, jpeg = io.BytesIO(), io.BytesIO()
    picture = Image.open(io.BytesIO(base64.b64decode(data.pop("image/png")))).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(png, "PNG", optimize=True)
    picture.save(jpeg, "JPEG", quality=85, subsampling=0, optimize=True)
    kind, small = min(("png", png), ("jpeg", jpeg), key=lambda pair: pair[1].tell())
    data[f"image/{kind}"] = base64.b64encode(small.getvalue()).decode()


def main(chosen: list[str]) -> None:
    for name in chosen or names():
        notebook = execute(NOTEBOOKS / f"{name}.py")
        nbformat.write(notebook, NOTEBOOKS / f"{name}.ipynb")
        print(f"notebooks/{name}.ipynb")


if __name__ == "__main__":
    main(sys.argv[1:])
