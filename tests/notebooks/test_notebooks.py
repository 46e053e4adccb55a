"""Every notebook runs, and the stored outputs belong to the script.

A cell that asserts a figure fails its notebook here.
"""

from __future__ import annotations

import re
from pathlib import Path

import jupytext
import nbformat
import numpy as np
import pytest
import soundfile
from nbclient.exceptions import CellExecutionError

from datasets.sources.glitches import simulate, write_hdf5
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


#: Draw figures where a kernel would show them: all but the pixels, which take as long as the rest. Files are opened in
#: the same process.
DRAWN = """
import runpy, sys
from matplotlib import pyplot
from datasets.core import processes
processes.FORKS = False
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
    assert errors == "", "readers see it in red"
    assert "drawn" in printed.splitlines()


@pytest.mark.parametrize("name", names())
def test_editors_find_the_kernel(name: str) -> None:
    """They choose the environment's own by this name; what reads files of one's own says how it is opened."""
    notebook = nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)
    assert notebook.metadata.kernelspec.name == "python3"
    if "\nown" in (NOTEBOOKS / f"{name}.py").read_text():
        assert "`make notebooks`" in notebook.cells[0].source


def run_on(name: str, folder: Path, until: str = "", **settings: object) -> str:
    """Run a notebook with other settings, up to a heading; returns what it prints."""
    text = (NOTEBOOKS / f"{name}.py").read_text()
    text = text[: text.index(f"# ## {until}")] if until else text
    for setting, value in settings.items():
        text, count = re.subn(rf"(?m)^({setting}(?:: [^=]*)?) = .*$", rf"\1 = {value!r}", text)
        assert count == 1
    (folder / "own.py").write_text(text)
    script = Program("-c", DRAWN, str(folder / "own.py"), cwd=ROOT)
    printed, errors = script.communicate(timeout=280)
    assert script.returncode == 0, errors
    assert errors == ""
    return printed


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
    printed = run_on("01_pictures", tmp_path, own=str(folder))
    assert "21 pictures of 7 classes" in printed
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_second_one_reads_recordings_of_ones_own_and_leaves_them_alone(tmp_path: Path) -> None:
    """Tones of two heights, of unequal rates, lengths and numbers, with a silent, a clipped and a damaged one."""
    folder, rng = tmp_path / "recordings", np.random.default_rng(0)
    for c, hertz in {"high": 3000, "low": 300}.items():
        (folder / c).mkdir(parents=True)
        for n in range(5):
            rate = (16_000, 8000)[n == 4]
            time = np.arange(rate // (1 + (n == 3))) / rate
            tone = 0.3 * np.sin(2 * np.pi * hertz * time * (1 + n / 20)) * np.hanning(len(time))
            soundfile.write(
                folder / c / f"{n}.wav", tone + 1e-3 * rng.standard_normal(len(time)), rate
            )
    soundfile.write(folder / "low" / "nothing.wav", np.zeros(16_000), 16_000)
    soundfile.write(folder / "high" / "loud.wav", np.clip(100 * tone, -1, 1), 8000)
    (folder / "low" / "broken.wav").write_bytes(b"no sound")
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    printed = run_on("02_sound", tmp_path, "Three windows at once", own=str(folder), group_by="")
    assert "12 items of 2 classes in 12 files" in printed
    assert "silent: nothing.wav" in printed
    assert "clipped: loud.wav" in printed
    assert "3 at 8000 Hz with 1 channel(s)" in printed
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_third_one_reads_strain_of_ones_own(tmp_path: Path) -> None:
    """Files may be shorter than what is whitened elsewhere."""
    strain = simulate("Blip_sim", rng=1, duration=20)
    (tmp_path / "strain").mkdir()
    write_hdf5(tmp_path / "strain" / "H-H1_TEST-1000000000-20.hdf5", strain, "a test")
    own = str(tmp_path / "strain")
    printed = run_on("03_gravitational_waves", tmp_path, "How much energy", own=own)
    found = re.findall(r"GPS (\d+\.\d+): energy", printed)
    assert float(found[0]) == pytest.approx(strain.trigger, abs=0.3)


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
