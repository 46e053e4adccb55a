"""Photos of one event show one thing."""

from __future__ import annotations

from fields.cameras.bursts import bursts_in
from learners.predictions.together import TOGETHER, Together

TOGETHER.add(Together("events of photos", bursts_in))
