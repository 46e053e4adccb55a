"""What we rely on in the Hugging Face client and timm."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import timm
from safetensors.torch import save_file

from learners.backbones import upstream


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
