"""One run in several processes: which one this is, and what they tell each other."""

from learners.distributed.ranks import (
    apart,
    check_batch,
    count,
    device,
    end_together,
    first_process_value,
    gathered,
    in_turn,
    is_first,
    leave,
    plain_loaders,
    plain_model,
    process_group,
    rank,
    share,
    this_process_part,
    training,
)
