"""Every block of commands and of Python in the documents works, or says why it is not run.

`<!-- no test: needs a network -->` before a block excuses it.

Blocks run in this process, in a folder with files of the documented names. Training is shortened:
one fold of several is trained, and diagrams are not drawn. Commands of `benchmarks/`, and those of
`make`, which repeat others, are only parsed.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import io
import os
import re
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from benchmarks import _shared
from datasets.core.program import MODULES
from learners.cli.flags import parse
from secondhand.commands import COMMANDS
from tests.documented import ROOT, Block, blocks, write_world

BLOCKS = blocks()
#: Flags that shorten a training; documented flags take precedence.
TINY = {
    "--backbone": "test_resnet",
    "--size": "32",
    "--epochs": "1",
    "--freeze-epochs": "0",
    "--bs": "8",
    "--workers": "0",
    "--cross-fit": "0",
}
#: What is shorter in Python: the size of the model's pictures, and a session with fastai.
SHORTER = {
    "160": TINY["--size"],
    "lr_find(": "lr_find(num_it=30, ",
    "fine_tune(3,": "fine_tune(1,",
}
#: The runs made so far, and the arguments that trained them.
TRAINED: dict[Path, list[str]] = {}
#: The fold that is trained, unless the data give the folds.
FOLDS = {"5": "1", "group": "a"}


def test_every_block_is_run_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    neither = [block.where for block in BLOCKS if not (block.kind or block.excused)]
    assert not neither, (
        f"neither commands nor Python, and no <!-- no test: … --> before them: {neither}"
    )
    excused = [block for block in BLOCKS if block.excused]
    with capsys.disabled():
        print(f"\n{len(BLOCKS) - len(excused)} blocks are run, {len(excused)} are not:")
        for block in excused:
            print(f"  {block.where}: {block.excused}")
    assert {"README.md", "CONTRIBUTING.md", "docs/improving-a-model.md"} <= {
        block.where.split(":")[0] for block in BLOCKS
    }


def test_what_a_block_is() -> None:
    text = "$ python -m a --b 'c d'  # e\nprinted\n$ make x"
    assert Block("", text).commands() == [["python", "-m", "a", "--b", "c d"], ["make", "x"]]
    assert Block("", "python -m a \\\n  b").commands() == [["python", "-m", "a", "b"]]
    kinds = {"import a": "python", "a: 1": "", "config.yaml   what is so": "", "make x": "shell"}
    assert {text: Block("", text).kind for text in kinds} == kinds


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of documented files; a run of `photos` and a page are made when needed."""
    from sklearn.datasets import load_digits

    from datasets.sources import demos as demos

    folder = tmp_path_factory.mktemp("world")
    TRAINED.clear()
    write_world(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        # One of the commands empties the cache.
        patch.setenv("SECONDHAND_CACHE", str(folder / ".cache" / "secondhand"))
        digits = load_digits()
        digits.images, digits.target = digits.images[:160], digits.target[:160]
        patch.setattr("sklearn.datasets.load_digits", lambda: digits)
        patch.setitem(demos._PER_CLASS, "glitches", 4)
        patch.setitem(demos._PER_CLASS, "sounds", 6)
        patch.chdir(folder)
        finetune(["--data", "photos"])
        yield folder


@pytest.fixture(scope="module")
def page(world: Path) -> Iterator[str]:
    from app.server import serve
    from app.serving import load_each
    from app.settings import PageSettings

    settings = PageSettings(models=["runs/photos/model"], device="cpu", port=0)
    with serve(load_each(settings)[0], settings) as url:
        yield url.rstrip("/")


RUN = [block for block in BLOCKS if block.kind and not block.excused]


@pytest.mark.slow
@pytest.mark.parametrize("block", RUN, ids=lambda block: block.where)
def test_it_does_what_it_says(
    block: Block, world: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    if "127.0.0.1:7860" in block.text:
        page = request.getfixturevalue("page")
        block = Block(block.where, block.text.replace("http://127.0.0.1:7860", page))
    if block.kind == "python":
        monkeypatch.setitem(sys.modules, "datasets", sys.modules["datasets"])  # one block hides it
        text = block.text
        for documented, short in SHORTER.items():
            text = text.replace(documented, short)
        exec(compile(text, block.where, "exec"), {"__name__": "documented"})
        return
    for words in block.commands():
        print(words)
        match = re.search(r"runs/(digits|sounds|glitches)/model.*demos/", " ".join(words))
        if match and Path("runs", match[1]) not in TRAINED:  # otherwise another process trained it
            finetune(["--data", f"demo:{match[1]}"])
        PROGRAMS[words[0]](words[1:])


def python(words: list[str]) -> None:
    if words[:2] == ["-m", "secondhand"]:
        secondhand(words[2:])
    elif words[0] == "-m":
        room, name = words[1].split(".")
        assert room == "learners"
        assert name in MODULES
        command(name, words[2:])
    else:
        parse_benchmark(ROOT / words[0], words[1:])


def secondhand(words: list[str]) -> None:
    command(words[0], words[1:])


def command(name: str, words: list[str]) -> None:
    """Call the command, and check what it guarantees."""
    words, target = redirected(words)
    words = [os.path.expanduser(word) for word in words]
    words = [path for word in words for path in sorted(glob.glob(word)) or [word]]
    if name in SHORTENED:
        SHORTENED[name](words)
        return
    output = run_command(name, words)
    if target:
        Path(target).write_text(output)
    if name == "predict":
        if "--out" in words:
            output = Path(words[words.index("--out") + 1]).read_text()
        rows = list(csv.DictReader(io.StringIO(output)))
        assert rows
        assert {"path", "label", "best", "probability", "reason"} <= rows[0].keys()
        assert not any(row["reason"].startswith("bad file") for row in rows)
    elif "--out" in words:
        written = Path(words[words.index("--out") + 1])
        assert (written if written.suffix else written / "report.json").is_file() or list(
            written.rglob("*.png")
        )
    elif name == "export":
        assert Path(words[0]).with_suffix(".onnx").is_file()
    else:
        assert output.strip()


def run_command(name: str, words: list[str]) -> str:
    """Return a command's standard output, and check that it succeeded."""
    main, output = COMMANDS[name].main, io.StringIO()
    with contextlib.redirect_stdout(output), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *words])
        try:
            status = main(words)
        except SystemExit as end:
            status = end.code
    assert not status, output.getvalue()
    return output.getvalue()


def redirected(words: list[str]) -> tuple[list[str], str]:
    return (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, "")


def finetune(words: list[str]) -> None:
    if "--resume" in words:
        assert "model" in run_command("finetune", words)
        return
    remaining = [word for at, word in enumerate(words)
            if word not in TINY and (at == 0 or words[at - 1] not in TINY)]  # fmt: skip
    fold = FOLDS.get(remaining[remaining.index("--cv") + 1], "") if "--cv" in remaining else ""
    tiny = dict(TINY)
    if any(word.endswith(".npz") for word in remaining):  # embeddings have no backbone
        tiny = {}
    elif "--from" in remaining:  # which brings its network
        tiny = {name: tiny[name] for name in ("--bs", "--workers")}
    else:
        remaining = [*remaining, "--weights", "none"]
    words = [*remaining, *(word for pair in tiny.items() for word in pair)]
    data = Path(words[words.index("--data") + 1].removeprefix("demo:")).stem
    run = Path("runs") / (f"{data}-cv" if "--cv" in words else data)  # as the command names it
    if "--out" in words:
        run = Path(words[words.index("--out") + 1])
    if fold:
        run = run / f"fold-{fold}"
        words += ["--fold", fold, "--out", str(run)]
    if TRAINED.get(run) == words:  # by an earlier block
        return
    TRAINED[run] = words
    shutil.rmtree(run, ignore_errors=True)
    run_command("finetune", words)
    assert (run / "report" / "index.html").is_file()
    cross_validated = "--cv" in words and not fold
    assert (run / ("folds.csv" if cross_validated else "model/config.json")).is_file()


def app(words: list[str]) -> None:
    """Start the page, and end it as soon as it waits."""
    from app import __main__ as module

    port = [word for word in words if word != "--port" and not word.isdigit()]
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_wait", lambda: None)
        assert " on http://127.0.0.1:" in run_command("app", [*port, "--port", "0"])
    signal.signal(signal.SIGTERM, before)


def parse_benchmark(script: Path, words: list[str]) -> None:
    """Parse a benchmark's flags. (tests/benchmarks runs it.)"""

    class Understood(Exception): ...

    def parse(parser, **_):  # type: ignore[no-untyped-def]
        parser.parse_args()
        raise Understood

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_shared, "parse", parse)
        patch.setattr(sys, "argv", [str(script), *words])
        patch.setattr(sys, "path", [*sys.path])
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
            patch.setenv(name, "1")
        patch.setattr(sys, "stdout", io.StringIO())
        with pytest.raises(SystemExit if "--help" in words else Understood):
            runpy.run_path(str(script), run_name="__main__")


def make(words: list[str]) -> None:
    for target in words:
        completed = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert completed.returncode == 0, completed.stderr
        lines = re.findall(r"python -m learners.finetune .*", completed.stdout.replace("\\\n", " "))
        for command in (words for line in lines for words in Block("Makefile", line).commands()):
            parse(command[3:])


def curl(words: list[str]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    done = subprocess.run(["curl", "-sS", "-f", *words], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert '"label"' in done.stdout


SHORTENED: dict[str, Callable[[list[str]], None]] = {"finetune": finetune, "app": app}
PROGRAMS: dict[str, Callable[[list[str]], None]] = {
    "python": python, "secondhand": secondhand, "make": make, "curl": curl,
}  # fmt: skip
