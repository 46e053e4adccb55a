"""Importing our modules changes nothing in the process; no private method is overridden."""

from __future__ import annotations

import ast
import importlib
import inspect
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from learners.machine.acceleration import SLEEPING
from tests.pictures import write_pictures

ROOT = Path(__file__).parents[2]
OURS = ("fields", "app", "learners", "datasets")
FILES = sorted(path for name in OURS for path in (ROOT / name).rglob("*.py"))
MODULES = sorted(
    str(path.relative_to(ROOT)).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    for path in FILES
)

PROGRAM = """
import faulthandler, importlib, json, logging, multiprocessing, os, signal, sys, warnings
theirs, ours = json.load(sys.stdin)
for name in theirs:
    try:
        importlib.import_module(name)
    except ImportError:
        pass  # an extra that is not installed
import matplotlib, torch

def state():
    root, cuda = logging.getLogger(), torch.backends.cuda.matmul
    return {
        "environment": dict(os.environ),
        "handlers of the root logger": [map(str, root.handlers), root.level, map(str, root.filters)],
        "warnings": [map(str, entry) for entry in warnings.filters],
        "threads": [torch.get_num_threads(), torch.get_num_interop_threads()],
        "start method": multiprocessing.get_start_method(allow_none=True),
        "backends": [torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark,
                     cuda.allow_tf32, torch.get_float32_matmul_precision()],
        "matplotlib": dict.__getitem__(matplotlib.rcParams, "backend"),
        "faulthandler": faulthandler.is_enabled(),
        "signals": [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)],
        "path": sys.path,
        "switch interval": sys.getswitchinterval(),
        "generator": torch.get_rng_state().sum(),
    }

# What POSIX alone has is taken away while ours are imported; the libraries, which are, have their own ways.
absent = ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty")
absent = {name: sys.modules.get(name) for name in absent}
names = (
    "O_CLOEXEC O_DIRECTORY O_NOFOLLOW O_NONBLOCK chown fchmod fork forkpty geteuid getuid killpg mkfifo nice"
    " posix_fadvise posix_fallocate pread pwrite register_at_fork sched_getaffinity setsid statvfs sysconf uname"
)
removed = [(os, name) for name in names.split()]
removed += [(signal, name) for name in "SIGKILL SIGHUP SIGALRM SIGCHLD SIGPIPE SIGUSR1 alarm pthread_kill".split()]
removed = [(module, name, getattr(module, name)) for module, name in removed]
sys.modules |= dict.fromkeys(absent)
for module, name, _ in removed:
    delattr(module, name)

changed, before = {}, json.dumps(state(), default=lambda x: list(x) if isinstance(x, map) else str(x))
for name in ours:
    importlib.import_module(name)
    after = json.dumps(state(), default=lambda x: list(x) if isinstance(x, map) else str(x))
    if after != before:
        was, now = json.loads(before), json.loads(after)
        changed[name] = [key for key in was if was[key] != now[key]]
        before = after

for module, name, value in removed:
    setattr(module, name, value)
for name, module in absent.items():
    del sys.modules[name]
    if module is not None:
        sys.modules[name] = module

def is_ours(kind):
    return kind.__module__.split(".")[0] in OURS

overrides = {}
for name in ours:
    for kind in vars(sys.modules[name]).values():
        if isinstance(kind, type) and kind.__module__ == name:
            private = {n for n in vars(kind) if n.startswith("_") and not n.startswith("__")}
            private -= {"_backward_cls"}  # which torch's metaclass makes for autograd's functions
            for base in kind.__mro__:
                upstream = base.__module__.split(".")[0] in ("fastai", "fastxtend", "timm", "torch")
                if upstream and (found := sorted(
                    n for n in private & vars(base).keys() if callable(vars(base)[n])
                )):
                    overrides[f"{name}.{kind.__name__}"] = found
print(json.dumps([changed, overrides]))
"""

TRAINER = """
import tempfile, torch, transformers
from transformers import Trainer, TrainingArguments

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(2, 3)

    def forward(self, x, labels):
        return {"loss": torch.nn.functional.cross_entropy(self.layer(x), labels)}

net, rows = Net(), [{"x": torch.ones(2), "labels": torch.tensor(1)}] * 4
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(), num_train_epochs=1, save_strategy="no", report_to=[], use_cpu=True
)
try:
    Trainer(net, arguments, train_dataset=rows).train()
    print("trained")
except AttributeError as error:
    print(error)
"""

ALONE = """
import pathlib, datasets
assert pathlib.Path(datasets.__file__).parent.parent == pathlib.Path.cwd(), "another is installed"
"""

#: Libraries that look for Hugging Face's package `datasets` and find ours, each with a use of it.
LIBRARIES = """
import timm, torch, timm.data
net = timm.create_model('resnet10t', num_classes=3).eval()
assert net(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
assert timm.data.resolve_data_config(model=net)['mean']

import accelerate
net = accelerate.Accelerator(cpu=True).prepare(torch.nn.Linear(2, 3))
assert net(torch.zeros(1, 2)).shape == (1, 3)

import transformers
settings = transformers.GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1)
net = transformers.GPT2LMHeadModel(settings).eval()
assert net(torch.zeros(1, 4, dtype=torch.long)).logits.shape == (1, 4, 8)

import gradio
page = gradio.Interface(lambda text: text.upper(), 'text', 'label')
assert page.get_config_file()['components']
assert page.fn('a') == 'A'
"""


def other_imports(path: Path) -> set[str]:
    """Return the third-party modules that a file imports when it is imported."""
    modules = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Import):
            modules |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return {name for name in modules if name.split(".")[0] not in OURS}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_import_changes_nothing_needs_no_posix_and_no_private_method_is_overridden() -> None:
    """All is tested in one interpreter, because imports take long.

    The libraries work beside our `datasets`, except for the Trainer, as the README says. (The test
    of ``bench_epoch`` shows that it trains without ours on the path.)
    """
    theirs = sorted({"matplotlib", "torch"}.union(*map(other_imports, FILES)) - {"__future__"})
    completed = subprocess.run(
        [sys.executable, "-c", f"{PROGRAM}\n{ALONE}\n{LIBRARIES}\n{TRAINER}"], input=json.dumps([theirs, MODULES]), cwd=ROOT,
        capture_output=True, text=True, timeout=580,
        env={name: value for name, value in os.environ.items() if name not in SLEEPING},
    )  # fmt: skip
    assert completed.returncode == 0, completed.stderr
    *_, first, report = completed.stdout.splitlines()
    changed, overrides = json.loads(first)
    assert changed == {}, (
        "set it in the commands, by learners.machine.acceleration or learners.cli.console"
    )
    assert overrides == {}, "use a documented method, or the room's upstream.py with the reason"
    assert report == "module 'datasets' has no attribute 'Dataset'"


@pytest.mark.parametrize("name", [name for name in MODULES if name.count(".") == 1])
def test_a_front_gives_what_it_imports(name: str) -> None:
    """Packages that import on demand do too, and export nothing else."""
    front = importlib.import_module(name)
    for node in ast.walk(ast.parse(inspect.getsource(front))):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith(f"{name}."):
            for alias in node.names:
                assert getattr(front, alias.asname or alias.name) is not None
    with pytest.raises(AttributeError, match="nothing_of_it"):
        front.nothing_of_it  # noqa: B018


@pytest.mark.slow
def test_the_data_are_read_before_torch_is_imported(tmp_path: Path) -> None:
    """Importing torch takes seconds, so errors in the data are reported before it."""
    program = (
        "import sys\n"
        "from learners.finetune import main\n"
        "from learners.runs import run\n"
        "read = run.load_items\n"
        "def load_items(*given):\n"
        "    print(len(read(*given).rows))\n"
        "    print(sorted({'torch', 'torchvision', 'fastai', 'timm'} & sys.modules.keys()))\n"
        "    sys.exit()\n"
        "run.load_items = load_items\n"
        "main(['--data', sys.argv[1], '--out', sys.argv[2] + '/run'])"
    )
    completed = subprocess.run(
        [sys.executable, "-c", program, str(write_pictures(tmp_path / "data")), str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert completed.returncode == 0, completed.stderr
    count, imported = completed.stdout.splitlines()
    assert int(count) == 60
    assert imported == "[]"


def test_threads_and_gpus_are_told_without_torch():
    """This applies if there is no GPU driver; otherwise torch is asked."""
    program = (
        "import sys\n"
        "from learners.machine import hardware\n"
        "hardware._gpu_driver = lambda: False\n"
        "before = hardware.threads()\n"
        "with hardware.keep_thread_count(1):\n"
        "    print(before, hardware.threads(), end=' ')\n"
        "print(hardware.threads(), hardware.has_cuda(), 'torch' in sys.modules)\n"
    )
    completed = subprocess.run([sys.executable, "-c", program], cwd=ROOT, check=True, capture_output=True,
                         text=True, timeout=60, env={**os.environ, "OMP_NUM_THREADS": "3"})  # fmt: skip
    assert completed.stdout.split() == ["3", "1", "3", "False", "False"]
