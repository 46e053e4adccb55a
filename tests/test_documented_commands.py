"""Every block of commands and of Python in the documents does what it is there for, or says why it is
not run: `<!-- no test: needs a network -->` before it.

In this process, in a folder with files of the names that the documents use, and with training cut
short: of folds that are made up one is trained, diagrams are not drawn. Commands of `benchmarks/` are
parsed, and so are those of `make`, which repeat others.
"""

from __future__ import annotations

import contextlib
import csv
import glob
import importlib
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
from learners.cli.flags import make_parser, parse
from tests.documented import ROOT, Block, blocks, write_world

BLOCKS = blocks()
#: What a training is cut short by; said flags give way.
TINY = {
    "--backbone": "test_resnet",
    "--size": "32",
    "--epochs": "1",
    "--freeze-epochs": "0",
    "--bs": "8",
    "--workers": "0",
}
#: The runs of this process's world, and what trained them.
TRAINED: dict[Path, list[str]] = {}
#: One fold is trained, where not the data say which there are.
FOLDS = {"5": "1", "group": "a"}


def test_every_block_is_run_or_says_why_not(capsys: pytest.CaptureFixture[str]) -> None:
    lost = [block.where for block in BLOCKS if not (block.kind or block.excused)]
    assert not lost, f"neither commands nor Python, and no <!-- no test: … --> before them: {lost}"
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
def world(tmp_path_factory: pytest.TempPathFactory, sketched: None) -> Iterator[Path]:
    """The folder; a run of `photos`, and a page at work over it, are made when a block needs them."""
    from sklearn.datasets import load_digits

    from datasets.sources import demos as demos

    folder = tmp_path_factory.mktemp("world")
    TRAINED.clear()
    write_world(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        # One command empties it.
        patch.setenv("SECONDHAND_CACHE", str(folder / ".cache" / "secondhand"))
        few = load_digits()
        few.images, few.target = few.images[:160], few.target[:160]
        patch.setattr("sklearn.datasets.load_digits", lambda: few)
        patch.setitem(demos._PER_CLASS, "glitches", 4)
        patch.setitem(demos._PER_CLASS, "sounds", 6)
        patch.chdir(folder)
        finetune(["--data", "photos"])
        yield folder


@pytest.fixture(scope="module")
def page(world: Path) -> Iterator[str]:
    from app.server import serve
    from app.serving import Limits, load_each

    with serve(load_each(["runs/photos/model"], limits=Limits(), device="cpu")[0]) as url:
        yield url.rstrip("/")


RUN = [block for block in BLOCKS if block.kind and not block.excused]


@pytest.mark.slow
@pytest.mark.parametrize("block", RUN, ids=lambda block: block.where)
def test_it_does_what_it_says(
    block: Block, world: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(world)
    if (
        block.kind == "python"
        and ".onnx" in block.text
        and not Path("runs/photos/model.onnx").exists()
    ):
        module("learners.export", ["runs/photos/model"])
    if "127.0.0.1:7860" in block.text:
        page = request.getfixturevalue("page")
        block = Block(block.where, block.text.replace("http://127.0.0.1:7860", page))
    if block.kind == "python":
        monkeypatch.setitem(sys.modules, "datasets", sys.modules["datasets"])  # one hides it
        text = block.text.replace("160", TINY["--size"])  # pixels of the model's pictures
        exec(compile(text, block.where, "exec"), {"__name__": "documented"})
        return
    for words in block.commands():
        print(words)
        asked = re.search(r"runs/(digits|sounds|glitches)/model.*demos/", " ".join(words))
        if asked and Path("runs", asked[1]) not in TRAINED:  # in another process, if at all
            finetune(["--data", f"demo:{asked[1]}"])
        PROGRAMS[words[0]](words[1:])


def python(words: list[str]) -> None:
    if words[0] == "-m":
        module(words[1], words[2:])
    else:
        parsed(ROOT / words[0], words[1:])


def module(name: str, words: list[str]) -> None:
    """Call the command, and look at what it guarantees."""
    words, to = redirected(words)
    words = [os.path.expanduser(word) for word in words]
    words = [found for word in words for found in sorted(glob.glob(word)) or [word]]
    if name in COMMANDS:
        COMMANDS[name](words)
        return
    said = called(name, words)
    if to:
        Path(to).write_text(said)
    if name == "learners.predict":
        if "--out" in words:
            said = Path(words[words.index("--out") + 1]).read_text()
        rows = list(csv.DictReader(io.StringIO(said)))
        assert rows
        assert {"path", "label", "best", "probability", "reason"} <= rows[0].keys()
        assert not any(row["reason"].startswith("bad file") for row in rows)
        assert ("set" in rows[0]) == ("--sets" in words)
    elif "--out" in words:
        made = Path(words[words.index("--out") + 1])
        assert (made if made.suffix else made / "report.json").is_file() or list(
            made.rglob("*.png")
        )
    elif name == "learners.export":
        assert Path(words[0]).with_suffix(".onnx").is_file()
    else:
        assert said.strip()


def called(name: str, words: list[str]) -> str:
    """What a command wrote to standard output, once it ended well."""
    main, said = importlib.import_module(name).main, io.StringIO()
    with contextlib.redirect_stdout(said), pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", [name, *words])
        try:
            status = main() if name.startswith("benchmarks") else main(words)
        except SystemExit as end:
            status = end.code
    assert not status, said.getvalue()
    return said.getvalue()


def redirected(words: list[str]) -> tuple[list[str], str]:
    return (words[:-2], words[-1]) if words[-2:-1] == [">"] else (words, "")


def finetune(words: list[str]) -> None:
    if "--resume" in words:
        assert "model" in called("learners.finetune", words)
        return
    kept = [word for at, word in enumerate(words)
            if word not in TINY and (at == 0 or words[at - 1] not in TINY)]  # fmt: skip
    fold = FOLDS.get(kept[kept.index("--cv") + 1], "") if "--cv" in kept else ""
    tiny = dict(TINY)
    if any(word.endswith(".npz") for word in kept):  # embeddings have no body
        tiny = {}
    elif "--from" in kept:  # which brings its network
        tiny = {name: tiny[name] for name in ("--bs", "--workers")}
    else:
        kept = [*kept, "--weights", "none"]
    words = [*kept, *(word for pair in tiny.items() for word in pair)]
    data = Path(words[words.index("--data") + 1].removeprefix("demo:")).stem
    run = Path("runs") / (f"{data}-cv" if "--cv" in words else data)  # as the command names it
    if fold:
        run = run / f"fold-{fold}"
        words += ["--fold", fold, "--out", str(run)]
    if TRAINED.get(run) == words:  # by a block before
        return
    TRAINED[run] = words
    shutil.rmtree(run, ignore_errors=True)
    called("learners.finetune", words)
    assert (run / "report" / "index.html").is_file()
    whole = "--cv" in words and not fold
    assert (run / ("folds.csv" if whole else "model/config.json")).is_file()


def app(words: list[str]) -> None:
    """It comes up, and is ended as soon as it waits."""
    from app import __main__ as command

    port = [word for word in words if word != "--port" and not word.isdigit()]
    before = signal.getsignal(signal.SIGTERM)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(command, "_wait", lambda: None)
        assert " on http://127.0.0.1:" in called("app.__main__", [*port, "--port", "0"])
    signal.signal(signal.SIGTERM, before)


def parsed(script: Path, words: list[str]) -> None:
    """A benchmark's flags are understood. (That it runs, tests/benchmarks sees.)"""

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
        ran = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        lines = re.findall(r"python -m learners.finetune .*", ran.stdout.replace("\\\n", " "))
        for command in (words for line in lines for words in Block("Makefile", line).commands()):
            parse(make_parser("learners.finetune", ""), command[3:])


def curl(words: list[str]) -> None:
    if shutil.which("curl") is None:
        pytest.skip("no curl on this machine")
    ran = subprocess.run(["curl", "-sS", "-f", *words], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stderr
    assert '"label"' in ran.stdout


COMMANDS: dict[str, Callable[[list[str]], None]] = {"learners.finetune": finetune, "app": app}
PROGRAMS: dict[str, Callable[[list[str]], None]] = {"python": python, "make": make, "curl": curl}
