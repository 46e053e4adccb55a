"""A model and files without labels -> their embeddings, what is like an example, what to label next."""

from learners.pool.embeddings import Embeddings, Extended, Near
from learners.pool.listing import as_text, check_out, sheet_of, write_list
from learners.pool.teaching import (
    Labelled,
    Suggested,
    Suggestion,
    choose,
    labelled_in,
    suggest,
    unsureness,
)
