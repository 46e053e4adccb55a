"""A backbone's name -> body, head and preprocessing, as plain torch (timm, torchvision, embedded, by hand)."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from learners.backbones.building import (
        Answers,
        Ensemble,
        Network,
        Unit,
        against_last,
        averaged,
        batch_norms,
        build,
        carry,
        first_member,
        logits_and_features,
        native_size,
        parameter_groups,
    )
    from learners.backbones.hub import mel_of, no_waiting_for_a_hub_out_of_reach
    from learners.backbones.spec import NetworkSpec

__getattr__ = lazy_names(__name__)
