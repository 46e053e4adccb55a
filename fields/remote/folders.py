"""Model folders on the hub, and at addresses."""

from __future__ import annotations

from pathlib import Path

from datasets.core.address import is_address
from datasets.core.folders import ELSEWHERE, Elsewhere


def _is_on_hub(name: str) -> bool:
    return name.startswith("hf:") and not is_address(name)


def _of_hub(name: str) -> Path:
    from fields.remote.models import downloaded

    return downloaded(name)


def _at_address(name: str) -> Path:
    from fields.remote.models import fetched

    return fetched(name)


ELSEWHERE.add(Elsewhere("hub", _is_on_hub, _of_hub, "hf:USER/NAME"))
ELSEWHERE.add(Elsewhere("address", is_address, _at_address))
