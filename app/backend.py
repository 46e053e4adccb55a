"""What stands behind a page: models, evidence, corrections; no Gradio."""

from __future__ import annotations

import asyncio
import logging
import math
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from app.about import Bought, Evidence
from app.drawing import look, panel_svg, timeline, trigger
from app.feedback import Feedback
from app.serving import Busy, Served
from app.views import UNKNOWN, Rule, own_rule, span, without_paths
from datasets import audio
from datasets.core.errors import BadFile, SecondhandError
from datasets.core.processes import apart
from datasets.core.scanning import kind_of
from datasets.spectrograms import Source
from learners.inference import refused
from learners.report import Pictures, shown, when
from learners.templates import render
from learners.uncertainty import Reason

if TYPE_CHECKING:
    from app.pool import Alike, Labelling
    from learners.inference import Predictor

log = logging.getLogger(__name__)

#: The C library behind GWF ends the whole process where a frame is damaged.
NO_FRAMES = "GWF frames are not opened here; convert it to HDF5"
#: Seconds of a recording. Highly compressed, days of sound fit into one upload.
LONGEST = 3600.0


@dataclass
class Asked:
    """What one visitor asked last."""

    file: str = ""
    at: float | None = None
    answer: Any = None


@dataclass
class Site:
    """Everything behind a page.

    Attributes
    ----------
    models : by the name that the page shows.
    uploads : the folder that uploaded files lie in; nothing outside it is ever opened.
    feedback : where corrections are kept; None switches them off.
    labelling, alike : pools of files, None likewise.
    """

    models: dict[str, Served]
    uploads: str
    feedback: Feedback | None = None
    labelling: Labelling | None = None
    alike: Alike | None = None
    evidence: dict[str, Evidence] = field(default_factory=dict)
    # Heat maps and spectrograms for the eye: two at a time, the rest waits its turn.
    drawing: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(2))

    def __post_init__(self) -> None:
        for name, served in self.models.items():
            # What a run keeps beside its model tells of one label an item.
            confidence = served.predictor.confidence
            folder = served.folder if confidence.exclusive else None
            self.evidence[name] = Evidence(folder, served.predictor.classes, confidence.tree)

    def rule(self, name: str, threshold: float | None) -> Rule:
        """The model's own rule, or for a threshold the rule of that probability instead."""
        confidence = self.models[name].predictor.confidence
        if threshold is None:
            return own_rule(confidence, self.models[name].predictor.classes)
        cut = min(max(float(threshold), 0.0), 1.0)
        classes = self.models[name].predictor.classes
        cuts = None if confidence.exclusive else dict.fromkeys(classes, cut)
        return Rule(cut, confidence.alpha, own=False, cuts=cuts)

    def bought(self, name: str, rule: Rule) -> Bought | None:
        """What a rule gives on the model's calibration items."""
        return self.evidence[name].buys(None if rule.own else rule.cut, rule.alpha)

    def start(self, name: str) -> float:
        """Where the slider rests while the model's own rule holds: as strict as that."""
        own = self.rule(name, None)
        if own.on == "probability":
            return own.cut
        return math.floor(1000 * self.evidence[name].as_strict()) / 1000  # a step of the slider's

    def choose(self, files: Sequence[str]) -> str:
        """The first model for the kind of these files, told by the endings of their names.

        Raises
        ------
        SecondhandError : there are several models, and none of them is for all of these files.
        """
        models = {name: served.kind for name, served in self.models.items()}
        if len(models) == 1:
            return next(iter(models))  # its own readers say what is wrong with a file
        kinds = {kind_of(file) for file in files}
        fit = [name for name, kind in models.items() if kinds == {kind}]
        if fit:
            return fit[0]
        known = " and ".join(sorted(kind for kind in kinds if kind))
        raise SecondhandError(
            f"{known or 'a file of no known ending'}: name the model. This page has "
            + ", ".join(f"{name} ({kind})" for name, kind in models.items())
        )

    async def answer(
        self, name: str, file: str, at: float | None, *, admitted: bool = False
    ) -> Any:
        """The model's own answer for an uploaded file, waiting in line for it.

        Raises
        ------
        SecondhandError : not an uploaded file, no place in the line, or it took too long.
        """
        served = self.models[name]
        here = os.path.join(os.path.realpath(self.uploads), "")
        if not os.path.realpath(file).startswith(here):  # links followed
            raise SecondhandError("Only files that were uploaded here are opened.")
        if (why := await asyncio.to_thread(refusal, file, served.kind)) is not None:
            return refused(Source(file), BadFile(file, why))
        future = served.submit(
            Source(file, at=at if served.kind == "strain" else None), admitted=admitted
        )
        try:
            answer = await asyncio.wait_for(
                asyncio.wrap_future(future), timeout=served.limits.seconds
            )
        except TimeoutError:
            raise SecondhandError(
                f"This took longer than {served.limits.seconds:g} s and was given up."
            ) from None
        why, detail = answer.reason.why, answer.reason.detail
        return answer._replace(reason=Reason(why, without_paths(detail, file)))

    async def answers(self, name: str, files: list[str], at: float | None) -> list[Any]:
        """Answers for several files: one place in the line for all, a batch of them at a time."""
        limits = self.models[name].limits
        if len(files) > limits.files:
            raise SecondhandError(
                f"{len(files)} files are more than the {limits.files} that this page takes at once."
            )
        if self.models[name].waiting >= limits.queue:
            raise Busy(limits.queue)
        at_once = asyncio.Semaphore(limits.batch)

        async def one(file: str) -> Any:
            async with at_once:
                return await self.answer(name, file, at, admitted=True)

        return list(await asyncio.gather(*(one(file) for file in files)))

    def show(self, name: str, asked: Asked, window: str | None) -> str:
        """What the model saw, where it looked, and the windows of a long recording, as HTML."""
        served, answer = self.models[name], asked.answer
        if answer is None or not answer.best:
            return ""
        windows = answer.windows
        chosen = next((w for w in windows if span(w) == window), None)
        shown = chosen or max(
            (w for w in windows if w.best == answer.best),
            key=lambda w: w.probability,
            default=answer,
        )
        start, end = (shown.start, shown.end) if chosen or windows else (None, None)
        number = served.predictor.classes.index(shown.best) if shown.best else None
        try:
            with self.drawing:
                source = trigger(served.predictor, Source(asked.file, start, end, asked.at))
                try:
                    panels = look(served.predictor, source, number)
                except SecondhandError as error:
                    panels = look(served.predictor, source, None)
                    log.info("no heat map: %s", error)
                near = resembling(served.predictor, source)
        except SecondhandError as error:
            return render("app", "note.html", words=without_paths(str(error), asked.file))
        return render(
            "app",
            "seen.html",
            strip=timeline(windows, served.predictor.classes, windows[-1].end) if windows else "",
            panels=[panel_svg(panel) for panel in panels],
            plain=served.kind == "picture",
            near=near,
            known=shown.label != UNKNOWN,
        )


def resembling(predictor: Predictor, source: Source) -> list[dict[str, Any]]:
    """The training files that a file is most like: name, class, and a picture of those that are there."""
    pictures, cards = Pictures(predictor), []
    for near in predictor.resembled(source, 4):
        card = {"name": Path(near.source.path).name + when(near.source), "label": near.label}
        try:
            card["picture"] = shown(pictures.draw(near.source), 120)
        except SecondhandError:  # gone since
            card["picture"] = ""
        cards.append(card)
    return cards


def refusal(file: str, kind: str) -> str | None:
    """Why a file is not even given to the readers; None for most."""
    try:
        with open(file, "rb") as opened:
            if opened.read(4) == b"IGWD":
                return NO_FRAMES
        if kind == "sound" and (duration := apart(_duration, file, 0.0)) > LONGEST:
            return f"{duration / 3600:.1f} hours are more than this page takes; cut it to one hour"
    except (OSError, SecondhandError):
        pass  # the reader says what is wrong
    return None


def _duration(file: str) -> float:
    return audio.probe(file).duration
