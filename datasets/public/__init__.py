"""The name of a public data set -> its files, fetched once and checked, and their labels."""

from datasets.public.download import MIRROR, RemoteFile, fetch_file
from datasets.public.gwosc import NOTE, PREFIX, fetch_event
from datasets.public.sets import SETS, PublicSet
