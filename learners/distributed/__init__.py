"""A run in several processes: ranks, and what the processes share."""

from learners.distributed.ranks import (
    all_values,
    check_batch,
    close_group,
    count,
    device,
    end_together,
    first_process_value,
    in_turn,
    is_first,
    plain_loaders,
    plain_model,
    process_group,
    rank,
    share,
    single_process,
    this_process_part,
    training,
)
