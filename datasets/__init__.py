"""Files -> DataLoaders. Knows nothing of ``learners`` or ``app``.

Shares its name with a Hugging Face package; inside this project ours wins, see docs/architecture.md.
"""

RENDERER_VERSION = 1  # raised whenever the same settings would draw another picture
