"""``demo:NAME`` -> labelled files that need no network. Simulated ones say so."""

from datasets.demos.sets import write_demo
