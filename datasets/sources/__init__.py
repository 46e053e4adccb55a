"""``demo:NAME`` or the name of a public set -> labelled files and their rows, made or fetched once.

The demos need no network; what is simulated says so."""

from datasets.sources.demos import write_demo
from datasets.sources.download import MIRROR, RemoteFile, fetch_file
from datasets.sources.gwosc import NOTE, PREFIX, fetch_event
from datasets.sources.public import SETS, PublicSet
