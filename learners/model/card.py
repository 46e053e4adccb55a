"""The model card: a README that the Hugging Face hub understands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def model_card(
    backbone: str,
    classes: Sequence[str],
    size: int,
    metrics: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> str:
    """README.md with the metadata block of the Hugging Face hub."""
    labels = [f"`{_one_line(name)}`" for name in classes[:50]]
    more = f" and {len(classes) - 50} more" if len(classes) > 50 else ""
    numbers = "\n".join(
        f"| {key.replace('_', ' ')} | {value:.4f} |"
        for key, value in metrics.items()
        if isinstance(value, float)
    )
    note = _one_line(str(provenance.get("note") or ""))
    return f"""---
library_name: secondhand
pipeline_tag: image-classification
tags: [secondhand, transfer-learning, safetensors]
---

# {backbone}, fine-tuned

Answers one of {len(classes)} classes, or "unknown": {", ".join(labels)}{more}.

Trained on: `{_one_line(str(provenance.get("data", "")))}`{f" ({note})" if note else ""}.
Input: {size} x {size} pixels.

| figure | value |
|---|---|
{numbers}

```
python -m learners.predict FOLDER FILE...
```

The folder holds tensors (safetensors) and JSON; opening it runs no code.
"""


def _one_line(text: str) -> str:
    """User's text inside a card: no markup, no new line."""
    return "".join(c if c.isprintable() and c not in "<>`|[]" else " " for c in text)[:200]
