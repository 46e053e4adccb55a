"""Every notebook runs, and the stored outputs belong to the script.

A cell that asserts a figure fails its notebook here.
"""

from __future__ import annotations

from pathlib import Path

import jupytext
import nbformat
import pytest
from nbclient.exceptions import CellExecutionError

from tests.datasets.files import picture
from tests.forks import ROOT, Program
from tests.notebooks.execute import NOTEBOOKS, execute, names

#: Pictures are kept so small that a notebook opens at once.
MOST_BYTES = 1 << 20


def stale(script: Path, file: Path) -> str:
    """Return why the stored notebook differs from the script, or ""."""
    notebook = nbformat.read(file, as_version=4)
    cells = [[(cell.cell_type, cell.source.strip()) for cell in n.cells]
             for n in (jupytext.read(script), notebook)]  # fmt: skip
    if cells[0] != cells[1]:
        return "its cells are not those of the script"
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if [cell.execution_count for cell in code] != list(range(1, len(code) + 1)):
        return "it was not run from top to bottom"
    if any(output.output_type == "error" for cell in code for output in cell.outputs):
        return "it holds an error"
    return ""


def test_there_are_notebooks() -> None:
    assert "05_from_scratch" in names()


@pytest.mark.parametrize("name", names())
def test_the_pair_is_whole_and_fresh(name: str) -> None:
    script, file = NOTEBOOKS / f"{name}.py", NOTEBOOKS / f"{name}.ipynb"
    assert script.exists(), f"{file.name} has no {script.name}: notebooks are edited as text"
    again = f"run `python -m tests.notebooks.execute {name}`"
    assert file.exists(), f"{script.name} has no {file.name}: {again}"
    reason = stale(script, file)
    assert not reason, f"{file.name}: {reason}; {again}"
    assert file.stat().st_size < MOST_BYTES, f"{file.name}: draw smaller pictures"


#: Draw figures where a kernel would show them: all but the pixels, which take as long as the rest.
DRAWN = """
import runpy, sys
from matplotlib import pyplot
def show():
    for number in pyplot.get_fignums():
        pyplot.figure(number).draw_without_rendering()
        print("drawn")
    pyplot.close("all")
pyplot.switch_backend("agg")
pyplot.show = show
runpy.run_path(sys.argv[1])
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", names())
def test_it_runs_from_its_first_line_to_its_last(name: str) -> None:
    """Without a kernel, which would import everything again; a test below uses one."""
    script = Program("-c", DRAWN, str(NOTEBOOKS / f"{name}.py"), cwd=ROOT)
    printed, errors = script.communicate(timeout=800)
    assert script.returncode == 0, errors
    assert "drawn" in printed.splitlines()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_first_one_reads_photos_of_ones_own_and_leaves_them_alone(tmp_path: Path) -> None:
    """Seven classes of few pictures, a damaged one among them, are not those that it makes."""
    folder = tmp_path / "photos"
    for c in "abcdefg":
        for n in range(3):
            picture(folder / c / f"{n}.png")
    (folder / "a" / "broken.jpg").write_bytes(b"no picture")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    text = (NOTEBOOKS / "01_pictures.py").read_text()
    assert text.count('\nown = ""') == 1
    (tmp_path / "own.py").write_text(text.replace('own = ""', f"own = {str(folder)!r}", 1))
    script = Program("-c", DRAWN, str(tmp_path / "own.py"), cwd=ROOT)
    printed, errors = script.communicate(timeout=280)
    assert script.returncode == 0, errors
    assert "21 pictures of 7 classes" in printed
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


SCRIPT = """# %% [markdown]
# # Title

# %%
x = 1 + 1

# %%
assert x == {expected}
print(x)
"""


def written(folder: Path, expected: int = 2) -> tuple[Path, Path]:
    script, file = folder / "it.py", folder / "it.ipynb"
    script.write_text(SCRIPT.format(expected=expected))
    return script, file


@pytest.mark.slow
def test_a_wrong_figure_fails(tmp_path: Path) -> None:
    with pytest.raises(CellExecutionError, match="AssertionError"):
        execute(written(tmp_path, expected=3)[0])


@pytest.mark.slow
def test_what_makes_a_pair_stale(tmp_path: Path) -> None:
    script, file = written(tmp_path)
    notebook = execute(script)
    nbformat.write(notebook, file)
    assert stale(script, file) == ""
    script.write_text(script.read_text().replace("1 + 1", "2"))
    assert "not those of the script" in stale(script, file)
    script, _ = written(tmp_path)
    nbformat.write(jupytext.read(script), file)
    assert "not run from top to bottom" in stale(script, file)
    notebook.cells[1].outputs = [
        nbformat.v4.new_output("error", ename="E", evalue="", traceback=[])
    ]
    nbformat.write(notebook, file)
    assert stale(script, file) == "it holds an error"
