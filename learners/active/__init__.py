"""Embeddings of unlabelled files, search by example, and suggestions of what to label next."""

from learners.active.embeddings import Embeddings, ExtendSummary, Match
from learners.active.listing import as_text, check_out, sheet_of, write_list
from learners.active.teaching import (
    LabelledContent,
    Suggestion,
    Suggestions,
    choose_diverse,
    labelled_in,
    margin_uncertainty,
    suggest,
)
