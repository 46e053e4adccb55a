"""One run in several processes: which one this is, and what they tell each other."""

from learners.distributed.ranks import (
    apart,
    check_batch,
    count,
    device,
    from_first,
    gathered,
    in_turn,
    is_first,
    joined,
    leave,
    part_of,
    plain_loaders,
    plain_model,
    rank,
    share,
    together_or_not_at_all,
    training,
)
