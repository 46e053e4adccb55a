"""A network or a learner -> the same numbers sooner on a CPU.

=================  ============================================================================
`accelerate`       applies what suits a network or a learner, a device and its settings: feature
                   maps channels-last
`CoreEach`         computes the parts of a batch side by side, in prediction
`keep_memory`      keeps the memory of activations from one batch to the next, for a whole process
`let_waiting_…`    threads that wait sleep, so that others have their core, for a whole process
=================  ============================================================================

What each brings stands in docs/decisions.md, "Speed". With ``SECONDHAND_ACCELERATION=0`` in the
environment none of them does anything: the tests pass either way.
"""

from typing import TYPE_CHECKING

from datasets.core.lazy import on_demand

if TYPE_CHECKING:
    from learners.acceleration.applying import accelerate
    from learners.acceleration.cores import CoreEach
    from learners.acceleration.process import (
        SLEEPING,
        is_on,
        keep_memory,
        keep_memory_on_cpu,
        let_waiting_threads_sleep,
    )

__getattr__ = on_demand(__name__)
