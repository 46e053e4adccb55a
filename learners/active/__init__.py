"""A model and files without labels -> their embeddings, what is like an example, what to label next."""

from learners.active.embeddings import Embeddings, Extended, Near
from learners.active.listing import as_text, check_out, sheet_of, write_list
from learners.active.teaching import (
    Labelled,
    Suggested,
    Suggestion,
    choose,
    labelled_in,
    suggest,
    unsureness,
)
