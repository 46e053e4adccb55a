"""Annotations of ELAN (https://archive.mpi.nl/tla/elan), whose files end in ``.eaf``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from urllib.parse import unquote
from xml.etree.ElementTree import Element

from datasets.kinds.base import find_kind
from datasets.sources.xml_files import line_of, read_xml
from fields.recordings import tiers
from fields.recordings.tiers import Tier
from fields.recordings.tracks import ParsedSelection, Selection, seconds

#: Most tiers above each other; in a file whose annotations refer to each other in a circle there is no end.
_DEPTH = 100


def _read_tiers(path: Path) -> list[Tier]:
    """The tiers of a file. An annotation that refers to another has its times."""
    root = read_xml(path, "ANNOTATION_DOCUMENT")
    recording, origin = _recording(root)
    slots = {
        slot.get("TIME_SLOT_ID"): slot.get("TIME_VALUE", "")
        for slot in root.iterfind("TIME_ORDER/TIME_SLOT")
    }
    annotations = {one.get("ANNOTATION_ID"): one for one in root.iterfind("TIER/ANNOTATION/*")}
    found = []
    for tier in root.iterfind("TIER"):
        spans: list[ParsedSelection] = []
        for one in tier.iterfind("ANNOTATION/*"):
            aligned = _aligned(one, annotations)
            start, end = (slots.get(aligned.get(f"TIME_SLOT_REF{n}"), "") for n in (1, 2))
            first, last = ((seconds(value) + origin) / 1000 for value in (start, end))
            label = tiers.label(one.findtext("ANNOTATION_VALUE"))
            spans.append((Selection(first, last, label, line_of(one), recording), (start, end)))
        found.append(Tier(tiers.label(tier.get("TIER_ID")), spans))
    return found


def _aligned(one: Element, annotations: Mapping[str | None, Element]) -> Element:
    """The annotation with times that one refers to, if any: itself, or one of a tier above."""
    for _ in range(_DEPTH):
        if (above := annotations.get(one.get("ANNOTATION_REF", ""))) is None:
            break
        one = above
    return one


def _recording(root: Element) -> tuple[str, float]:
    """The first media file that is a recording, "" if there is none, and the milliseconds in it at which time 0 is."""
    for media in root.iterfind("HEADER/MEDIA_DESCRIPTOR"):
        name = unquote(media.get("RELATIVE_MEDIA_URL") or media.get("MEDIA_URL") or "")
        if (kind := find_kind(name)) and kind.recordings:
            return name, seconds(media.get("TIME_ORIGIN", "0"))
    return "", 0.0


tiers.add_format("elan", 43, ".eaf", "annotations of ELAN", _read_tiers)
