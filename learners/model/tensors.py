"""Reads and writes the files of a model folder, checking what is read."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError

from datasets.core.errors import BadFile, SecondhandError
from datasets.core.files import file_beside
from learners.backbones.spec import NetworkSpec
from learners.files.lock import disk_error

if TYPE_CHECKING:
    from torch import Tensor, nn

T = TypeVar("T", "Tensor", NDArray[np.generic])

_SPARE = 150_000_000  # parameters; the classifier of the largest torchvision network has fewer


def storable(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that safetensors can store: detached, on the CPU, contiguous."""
    return {name: value.detach().cpu().contiguous() for name, value in tensors.items()}


def save_weights(model: nn.Module, file: Path, facts: dict[str, str] | None = None) -> None:
    """Write a state dict atomically as safetensors; shared tensors are stored separately.

    ``facts`` are stored in the same file as metadata.
    """
    from safetensors.torch import save_file

    try:
        with file_beside(file) as beside:
            save_file(storable(model.state_dict()), beside, metadata=facts)
    except SafetensorError as error:
        raise disk_error(file, error) from None


def read_tensors(file: Path) -> dict[str, Tensor]:
    """The tensors of a file. Raises BadFile if the file is damaged or a value is not finite."""
    from safetensors.torch import load_file

    # torch wakes its threads for every tensor; for hundreds of small tensors numpy is ten times faster.
    return _read(load_file, file, lambda t: (t if t.itemsize >= 4 else t.float()).numpy())


def read_arrays(file: Path) -> dict[str, NDArray[np.generic]]:
    """Like `read_tensors`, but returns NumPy arrays."""
    from safetensors.numpy import load_file

    return _read(load_file, file, lambda array: array)


def _read(
    load: Callable[[Path], dict[str, T]], file: Path, as_array: Callable[[T], NDArray[np.generic]]
) -> dict[str, T]:
    try:
        tensors = load(file)
    except (SafetensorError, ValueError, OSError, RuntimeError, KeyError, TypeError) as error:
        raise BadFile(file, f"damaged safetensors ({str(error)[:100]})") from None
    for name, value in tensors.items():
        if not np.isfinite(as_array(value)).all():
            raise BadFile(file, f"tensor {name} has NaN or infinite values")
    return tensors


def check_head(tensors: Mapping[str, Tensor], spec: NetworkSpec, file: Path) -> None:
    """Raise BadFile unless the last layer fits the spec; called before the network is built."""
    members = [f"members.{n}." for n in range(spec.members)] if spec.members > 1 else [""]
    for member in members:
        layers = {
            int(match[1]): list(value.shape)
            for name, value in tensors.items()
            if (match := re.fullmatch(re.escape(member) + r"1\.(\d{1,3})\.weight", name))
        }
        last = layers[max(layers)] if layers else []
        if len(last) != 2 or last[0] != spec.n_classes:
            raise BadFile(
                file,
                f"its last layer has shape {last}, but the network in config.json has {spec.n_classes} outputs"
                + (f" in each of {spec.members} members" if spec.members > 1 else ""),
            )


@contextmanager
def no_larger_than(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Refuse to build a network with far more parameters than the file has.

    A short JSON can name a network of many gigabytes. Parameters are counted as they are registered, before their
    memory is used. The limit is generous, because some builders create and drop a classifier, or build twice.
    """
    from torch.nn.modules.module import register_module_parameter_registration_hook

    allowed = 4 * sum(value.numel() for value in tensors.values()) + _SPARE
    n_parameters, thread = 0, get_ident()

    def count(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        nonlocal n_parameters
        if get_ident() == thread and parameter is not None:
            n_parameters += parameter.numel()
            if n_parameters > allowed:
                raise SecondhandError(
                    "network: its backbone has far more parameters than model.safetensors"
                )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def fill(network: nn.Module, tensors: dict[str, Tensor], file: Path) -> None:
    """Load tensors into a network; raises BadFile if names, shapes or types differ."""
    expected = network.state_dict()
    differing = sorted(set(expected) ^ set(tensors))
    if differing:
        raise BadFile(
            file,
            f"tensors are missing or not part of the network ({len(differing)}), such as {differing[0]}",
        )
    for name, value in expected.items():
        tensor = tensors[name]
        if tensor.shape != value.shape or tensor.dtype != value.dtype:
            raise BadFile(
                file,
                f"tensor {name} is {tensor.dtype} {list(tensor.shape)}, but the network needs "
                f"{value.dtype} {list(value.shape)}",
            )
    network.load_state_dict(tensors)


def once_each(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """A JSON object; raises ValueError for a repeated key, which readers interpret differently."""
    values = dict(pairs)
    if len(values) < len(pairs):
        raise ValueError("an object has a key twice")
    return values


def check_file(file: Path) -> None:
    """Raise BadFile unless ``file`` is a regular file; a link could point anywhere."""
    if file.is_symlink() or not file.is_file():
        raise BadFile(file, "missing, or not a regular file. Copy the model folder again")


def sha256(file: Path) -> str:
    """SHA-256 of a file, hex."""
    with open(file, "rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
