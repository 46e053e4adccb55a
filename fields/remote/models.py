"""Model folders elsewhere: download ``hf:USER/NAME[@REVISION]`` of the Hugging Face hub, or an address; upload a folder.

Uses the hub's client, with its tokens, offline mode (HF_HUB_OFFLINE) and resumed downloads. Downloaded
folders are not trusted.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

from datasets.core.address import as_path, local, state, without_secrets
from datasets.core.errors import SecondhandError, first_line
from datasets.core.files import folder_beside
from datasets.core.store import cache_root
from learners.model.bundle import CONFIG, FILES, load_bundle
from learners.model.tensors import check_file

PREFIX = "hf:"


def downloaded(name: str) -> Path:
    """A folder in the cache with the files of a model ``hf:USER/NAME[@REVISION]``.

    Raises
    ------
    SecondhandError : the model does not exist, is private, or the hub cannot be reached and the model was never
        downloaded.
    """
    from learners.backbones.hub import offline_if_unreachable

    repository, _, revision = checked(name.removeprefix(PREFIX)).partition("@")
    folder = cache_root() / "models" / quote(f"{repository}@{revision or 'main'}", safe="@")
    from huggingface_hub import snapshot_download

    with _explain_hub_errors(name), offline_if_unreachable():
        snapshot_download(
            repository, revision=revision or None, local_dir=folder, allow_patterns=[*FILES]
        )
    return folder


def fetched(name: str) -> Path:
    """A folder in the cache with the files of a model as they are now at an address."""
    address = without_secrets(name)
    held = (path for path in as_path(address).iterdir() if path.name in FILES)
    files = {path.name: path for path in held if path.is_file()}
    if CONFIG not in files:
        raise SecondhandError(
            f"{address} is not a model folder (it has no {CONFIG}). Give the folder model of a run"
        )
    states = sorted((name, state(str(path))) for name, path in files.items())
    version = hashlib.sha256(f"{address}{states}".encode()).hexdigest()[:16]
    folder = cache_root() / "models" / f"{as_path(address).name}@{version}"
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with folder_beside(folder, replace=False) as place:
            for name, path in files.items():
                shutil.copyfile(local(path), place / name)
    return folder


def publish(model: Path, name: str, *, private: bool, overwrite: bool) -> str | None:
    """Upload a valid model folder to ``USER/NAME``; returns its address.

    Returns None where one exists and ``overwrite`` is false.
    """
    from huggingface_hub import HfApi

    load_bundle(model, network=False)
    # Other files in the folder are never uploaded.
    present = [file for file in FILES if (model / file).exists()]
    for file in present:
        check_file(model / file)
    hub = HfApi()
    with _explain_hub_errors(name):
        if hub.repo_exists(checked(name)) and not overwrite:
            return None
        address = hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=name, folder_path=model, allow_patterns=present, commit_message="Share a model"
        )
    return str(address)


def checked(name: str) -> str:
    """The name, if it is USER/NAME or USER/NAME@REVISION; raises SecondhandError otherwise."""
    if not re.fullmatch(r"[\w-][\w.-]*/[\w-][\w.-]*(@[\w][\w./-]*)?", name):
        raise SecondhandError(
            f"{name} is not the name of a model on the hub. Use USER/NAME or USER/NAME@REVISION"
        )
    return name


@contextmanager
def _explain_hub_errors(name: str) -> Iterator[None]:
    """Turn errors of the hub's client into a SecondhandError of one line."""
    from huggingface_hub import errors

    try:
        yield
    except errors.RevisionNotFoundError:
        raise SecondhandError(
            f"{name}: the model on the hub has no such revision. Correct it"
        ) from None
    except (errors.RepositoryNotFoundError, errors.GatedRepoError):
        raise SecondhandError(
            f"{name} is not on the hub, or is private. Correct the name, or log in (hf auth login, or HF_TOKEN)"
        ) from None
    except errors.HfHubHTTPError as error:
        status = error.response.status_code
        remedy = "Try again later"
        if status in (401, 403):
            remedy = "Log in (hf auth login, or HF_TOKEN)"
        raise SecondhandError(
            f"{name}: the hub returned the HTTP status {status}. {remedy}"
        ) from None
    except SecondhandError:
        raise
    except Exception as error:  # the client's HTTP libraries raise errors of many kinds
        raise SecondhandError(
            f"{name}: the hub cannot be reached ({type(error).__name__}: {first_line(error, 110)}). Check the connection, or give the "
            "path of a local model folder"
        ) from None
