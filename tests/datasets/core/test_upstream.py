"""What we rely on in the libraries, and that we replace none of their attributes elsewhere."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from fastai.callback import schedule  # noqa: F401  (adds fit_one_cycle to Learner)
from fastai.callback.core import Callback
from fastai.data.block import DataBlock
from fastai.data.core import DataLoaders, TfmdDL
from fastai.data.load import DataLoader
from fastai.learner import Learner, Recorder
from fastai.optimizer import Optimizer, OptimWrapper
from fastai.torch_core import num_distrib
from fastxtend.callback.ema import EMACallback
from safetensors.torch import save_file
from torch import nn

from datasets.core import upstream

ROOT = Path(__file__).parents[3]
HERE = "datasets/core/upstream.py"
FILES = sorted(
    path for name in ("app", "learners", "datasets") for path in (ROOT / name).rglob("*.py")
)
#: Private names of Python, not of fastai, torch or timm.
OTHERS = {"_replace", "_asdict", "_fields", "_make", "_exit", "_processes", "_actions", "_band"}
#: Library classes whose methods must not be replaced on an object.
CLASSES = (Callback, DataBlock, DataLoader, DataLoaders, Learner, Optimizer, OptimWrapper, Recorder,
           TfmdDL, nn.Module, torch.optim.Optimizer)  # fmt: skip
METHODS = {name for one in CLASSES for name, value in inspect.getmembers(one) if callable(value)}
UPSTREAM = {"accelerate", "fastai", "fastcore", "fastxtend", "gradio", "huggingface_hub", "timm",
            "torch"}  # fmt: skip


@pytest.mark.parametrize("name", upstream.CHECKED)
def test_the_version_is_the_one_that_was_looked_at(name: str) -> None:
    pinned = dict(re.findall(r"(?m)^([\w-]+)==(\S+)", (ROOT / "constraints.txt").read_text()))
    pinned = {package.replace("-", "_"): version for package, version in pinned.items()}
    assert pinned[name] == upstream.CHECKED[name], (
        f"constraints.txt has another {name}: read what {HERE} says of it, look whether it is "
        "still so and still needed, and put the version there"
    )


@pytest.mark.parametrize("delivered", [True, False])
def test_ctrl_c_during_a_fork_is_delivered_afterwards(delivered: bool) -> None:
    program = (
        "import os, signal, time\n"
        "from datasets.core import upstream\n"
        f"{'upstream.deliver_late_interrupts()' if delivered else ''}\n"
        "os.register_at_fork(before=lambda: os.kill(os.getpid(), signal.SIGINT))\n"
        "if not os.fork(): os._exit(0)\n"
        "time.sleep(2)\n"
        "print('not interrupted')\n"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert ("not interrupted" in completed.stdout) != delivered, completed.stderr
    assert completed.stderr.rstrip().endswith("KeyboardInterrupt") == delivered


def test_the_workers_seed_comes_from_the_loaders_generator() -> None:
    def moves(loader: DataLoader) -> bool:
        before = torch.get_rng_state()
        list(loader)
        return not torch.equal(before, torch.get_rng_state())

    loader = DataLoader(list(range(4)), bs=2)
    assert moves(loader), f"torch draws no seed of its own any more: {HERE} is not needed for it"
    upstream.seed_workers_from(loader, torch.Generator().manual_seed(0))
    assert not moves(loader), "torch draws the workers' seed from elsewhere than loader.generator"


def test_the_transform_is_scipys_without_its_import() -> None:
    """They agree to the last bit; neither it nor drawing a sound imports scipy's public package."""
    program = (
        "import sys, numpy as np\n"
        "from datasets.core.upstream import real_fft\n"
        "from datasets.audio.settings import MelSettings\n"
        "rng = np.random.default_rng(0)\n"
        "MelSettings(rate=8000, n_fft=400).image(rng.standard_normal(8000))\n"
        "assert not {'scipy', 'scipy.fft', 'numpy.ma'} & set(sys.modules)\n"
        "import scipy.fft\n"
        "for shape, kind in (((32, 2048), 'f4'), ((3, 400), 'f4'), ((5, 372), 'f8'), ((1, 16), 'f4')):\n"
        "    x = rng.standard_normal(shape).astype(kind)\n"
        "    theirs = scipy.fft.rfft(x)\n"
        "    ours = real_fft()(x)\n"
        "    assert ours.dtype == theirs.dtype and np.array_equal(ours, theirs), (shape, kind)\n"
    )
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("repaired", [True, False])
def test_counts_reach_the_average(repaired: bool) -> None:
    """Counts of a BatchNorm, by fastxtend's callback after a step."""
    ema = EMACallback(0.5, foreach=True)
    rows = [(torch.rand(3), torch.rand(3)) for _ in range(8)]
    loaders = DataLoaders.from_dsets(rows, rows, bs=4)
    learn = Learner(loaders, nn.BatchNorm1d(3), nn.MSELoss(), cbs=[ema])
    pairs = []

    class Copy(Callback):
        order = 90

        def before_fit(self) -> None:
            pairs.extend(upstream.untangled_buffers(ema) if repaired else [])

        def after_batch(self) -> None:
            for source, average in pairs:
                average.copy_(source)

    with learn.no_bar(), learn.no_logging(), learn.added_cbs(Copy()):
        learn.fit(1)
    reached = int(learn.model_ema.num_batches_tracked)
    assert (reached == int(learn.model.num_batches_tracked) == 2) == repaired, (
        f"fastxtend copies them: {HERE} is not needed for it"
    )


def test_the_hub_can_be_told_not_to_ask(tmp_path: Path) -> None:
    from huggingface_hub import constants, hf_hub_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    before = constants.HF_HUB_OFFLINE
    with upstream.hub_offline():
        assert constants.is_offline_mode(), "huggingface_hub keeps its offline mode elsewhere"
        with pytest.raises(LocalEntryNotFoundError):
            hf_hub_download("nobody/nothing", "config.json", cache_dir=tmp_path)
    assert before == constants.HF_HUB_OFFLINE


def test_timm_tells_of_tensors_that_a_file_lacks(tmp_path: Path) -> None:
    state = timm.create_model("test_resnet", num_classes=0).state_dict()
    first = next(iter(state))
    for missing in ((), (first,)):
        file = tmp_path / f"{len(missing)}.safetensors"
        save_file({name: value for name, value in state.items() if name not in missing}, file)
        options = {"pretrained": True, "pretrained_cfg_overlay": {"file": str(file)}}
        with upstream.require_all_tensors():
            if not missing:
                timm.create_model("test_resnet", num_classes=0, **options)
                continue
            with pytest.raises(RuntimeError, match=re.escape(f"Missing keys ({first})")):
                timm.create_model("test_resnet", num_classes=0, **options)


def test_fastai_asks_the_environment_for_the_number_of_processes(monkeypatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert num_distrib() == 3, "fastai counts processes elsewhere than in WORLD_SIZE"
    with upstream.as_single_process():
        assert num_distrib() == 1
    assert num_distrib() == 3


def find_replacements(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield (line, text) wherever a library's attribute is replaced or a private name is used."""
    modules = {
        (alias.asname or alias.name).split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
        if (getattr(node, "module", None) or alias.name).split(".")[0] in UPSTREAM
    }
    defined = {
        n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and named(n.value, "self")
    }
    defined |= {
        n.name for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.ClassDef)
    }  # methods of a class in the same file
    for node in ast.walk(tree):
        is_patch = False
        if isinstance(node, ast.Attribute) and not named(node.value, "self", "cls"):
            private = node.attr.startswith("_") and not node.attr.startswith("__")
            set_there = node.attr in METHODS or named(node.value, *modules)
            is_patch = private and node.attr not in OTHERS | defined
            is_patch |= set_there and not isinstance(node.ctx, ast.Load)
        elif isinstance(node, ast.Call) and named(node.func, "setattr", "delattr"):
            name = node.args[1]
            is_patch = isinstance(name, ast.Constant) and name.value in METHODS
        elif isinstance(node, ast.FunctionDef):
            is_patch = any(
                named(decorator, "patch", "patch_to") for decorator in node.decorator_list
            )
        if is_patch:
            yield node.lineno, ast.unparse(node)


def named(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Name) and node.id in names


def test_nothing_of_the_libraries_is_replaced_in_other_files() -> None:
    found = {
        str(path.relative_to(ROOT)): replacements
        for path in FILES
        if (replacements := dict(find_replacements(ast.parse(path.read_text(encoding="utf-8")))))
    }
    assert found.pop(HERE), "the test sees what it is to see"
    assert found == {}, f"use a public hook, or {HERE} with the reason"


@pytest.mark.parametrize(
    "line",
    [
        "learn._do_fit = f",
        "loader.get_idxs = lambda: []",
        "self.learn.all_batches = f",
        "module.forward = f",
        "del module.forward",
        "setattr(loader, 'do_item', f)",
        "x = model._compiled_call_impl",
        "from huggingface_hub import constants\nconstants.HF_HUB_OFFLINE = True",
        "@patch\ndef go(self: Learner): ...",
    ],
)
def test_a_replacement_is_seen(line: str) -> None:
    assert dict(find_replacements(ast.parse(line)))
