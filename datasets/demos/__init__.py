"""``demo:NAME`` -> labelled files that need no network. Simulated ones say so."""

from datasets.demos.glitches import write_demo

__all__ = ["write_demo"]
