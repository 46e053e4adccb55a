"""A model and files without labels -> their embeddings, what is like an example, what to label next."""

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
