"""Records beside a table of predictions which model made it, with which thresholds: ``predictions.csv.json``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from datasets.core.errors import SecondhandError
from datasets.core.files import write_beside
from datasets.core.program import program_version
from learners.files.jsonable import jsonable
from learners.model.bundle import model_digest

if TYPE_CHECKING:
    from learners.inference.predictor import Predictor


class Provenance(NamedTuple):
    """What made a table of predictions.

    Attributes
    ----------
    model : name of the model folder, or of its run.
    sha256 : hash of the model's ``config.json``, which has the hashes of its other files.
    secondhand : version of the program.
    threshold, score : threshold on the probability, and overall score with its floors, as the model's ``config.json``
        has them, after the flags of the call.
    command : the call.
    """

    model: str
    sha256: str
    secondhand: str
    threshold: Any
    score: Any
    command: str

    @classmethod
    def record(cls, predictor: Predictor, folder: str, command: str) -> Provenance:
        """``folder`` : the model folder."""
        path = Path(folder).absolute()
        rule: Any = predictor.rule.to_json()
        return cls(
            path.parent.name if path.name == "model" else path.name,
            model_digest(folder),
            program_version(),
            rule["threshold"],
            {key: rule["score"][key] for key in ("name", "floors")},
            command,
        )

    @property
    def classifier(self) -> str:
        """Program and model in one line."""
        return f"Secondhand {self.secondhand}, model {self.model}, sha256 {self.sha256[:12]}"

    def write(
        self,
        out: Path,
        counts: Mapping[str, int],
        window: float | None = None,
        refused: Sequence[Any] = (),
    ) -> None:
        """Write the record of ``out`` atomically, with counts, the seconds of a window if there are any, what is refused far
        more often than usual, and the time.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        counted = {"counts": {**counts}, "window": window, "refused_more": [*refused]}
        content = jsonable(self._asdict() | counted | {"written": now})
        text = json.dumps(content, indent=1, ensure_ascii=False)
        write_beside(record_file(out), f"{text}\n".encode("utf-8", "surrogateescape"))


def record_file(out: Path) -> Path:
    """Path of the record of a table, or folder of tables."""
    return out.with_name(f"{out.name}.json")


def check_record(out: Path, *, overwrite: bool) -> None:
    """Raise SecondhandError if the record of ``out`` would replace a file that is none, without ``overwrite``."""
    file = record_file(out)
    try:
        is_record = {*Provenance._fields} <= {*json.loads(file.read_bytes())}
    except FileNotFoundError:
        return
    except (ValueError, TypeError, OSError):
        is_record = False
    if not (is_record or overwrite):
        raise SecondhandError(
            f"--out {out}: model and thresholds are recorded in {file}, which is another file. Choose another name or "
            "give --overwrite"
        )
