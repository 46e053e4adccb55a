"""Embeddings of unlabelled files, search by example, suggestions of what to label next, new classes, and audits."""

from learners.active.auditing import (
    TIMES,
    AuditLabels,
    check_single_label,
    columns_of,
    draw_audit,
    labels_of,
    read_audit,
)
from learners.active.discovery import (
    Cluster,
    Discoveries,
    benjamini_hochberg,
    calibration_needed,
    discover,
    discoveries_of,
    fewest_discoveries,
)
from learners.active.embeddings import Embeddings, Match, nearest_items
from learners.active.listing import as_text, check_out, sheet_of, write_list
from learners.active.teaching import (
    LabelledContent,
    PoolCounts,
    Suggestion,
    choose_diverse,
    labelled_in,
    margin_uncertainty,
    pool_of,
    suggest,
)
