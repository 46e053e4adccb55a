"""``demo:NAME`` or the name of a public set -> labelled files and their rows, made or fetched once.

The demos need no network; what is simulated says so."""

from datasets.sources.demos import write_demo
from datasets.sources.download import fetch_file, require_space
from datasets.sources.public import NOTE, PREFIX, SETS, PublicSet, fetch_event
