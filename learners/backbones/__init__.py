"""Builds networks in plain torch from a backbone's name: body, head and preprocessing."""

from typing import TYPE_CHECKING

from datasets.core.lazy import lazy_names

if TYPE_CHECKING:
    from learners.backbones.building import (
        Ensemble,
        LogitsAndFeatures,
        Network,
        Unit,
        average_logits,
        batch_norms,
        build,
        copy_weights,
        drop_background_row,
        first_member,
        logits_and_features,
        native_size,
        parameter_groups,
    )
    from learners.backbones.hub import mel_of, offline_if_unreachable
    from learners.backbones.spec import EMBEDDING, NetworkSpec

__getattr__ = lazy_names(__name__)
