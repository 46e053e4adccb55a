"""The inputs of the last layers of a model's heads, from which heads with other last layers are computed."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from datasets.kinds.views import TTAView
from learners.backbones.building import Ensemble, features_side_by_side, logits_and_features
from learners.model.tta import apply_tta_view


class HeadInputs(Ensemble):
    """A network whose logits are the inputs of the last layers: side by side of each view those of each member,
    [batch, views * members * width]. Its features are those of the members, averaged over the views.

    ``members`` : networks without the linear layer of their heads.
    """

    def __init__(self, members: Sequence[nn.Sequential], views: Sequence[TTAView]) -> None:
        super().__init__(members)
        self.views = views

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inputs, features = list[Tensor](), list[Tensor]()
        for view in self.views:
            seen = apply_tta_view(x, view)
            of_members = [logits_and_features(member, seen) for member in self.networks]
            inputs += [of_layer for of_layer, _ in of_members]
            features.append(features_side_by_side([pooled for _, pooled in of_members]))
        return torch.cat(inputs, dim=1), torch.stack(features).mean(0)
