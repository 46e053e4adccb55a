"""Demo data sets, which are written without a network, and public data sets, which are downloaded."""

from datasets.sources.demos import write_demo
from datasets.sources.download import fetch_file, require_space
from datasets.sources.public import NOTE, PREFIX, SETS, fetch_event
