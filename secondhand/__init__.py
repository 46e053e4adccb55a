"""Transfer learning for pictures, sound and gravitational-wave strain.

``secondhand --help`` lists the commands; `finetune`, `load_predictor` and `load_model` are for programs::

    import secondhand

    model = secondhand.finetune("photos", size=160, epochs=3)
    for answer in secondhand.load_predictor(model).predict(["a.jpg"]):
        print(answer.label, answer.probability, answer.reason)

What does the work are four packages, imported as ``fields``, ``app``, ``learners`` and ``datasets``. They lie
beside this one in a checkout; a wheel has them in this folder, where they hide no package of the same
name. To import this one puts them first on the path of the process.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from datasets.core.errors import SecondhandError
    from learners.finetune import finetune
    from learners.inference.embedding import embed
    from learners.inference.predictions import Prediction
    from learners.inference.predictor import Predictor
    from learners.loading.predictor import load_predictor
    from learners.model.places import load_model
    from learners.runs.session import learner, save_learner, vision_learner
    from secondhand.names import Name

__version__ = "1.0.0"
__all__ = [
    "Prediction", "Predictor", "SecondhandError", "embed", "finetune", "learner", "load_model", "load_predictor",
    "save_learner", "vision_learner",
]  # fmt: skip

_HERE = Path(__file__).resolve().parent
#: The folder that holds the three packages.
HOME = next(folder for folder in (_HERE, _HERE.parent) if (folder / "learners").is_dir())

for _name in ("datasets", "learners", "app", "fields"):
    _there = getattr(sys.modules.get(_name), "__file__", None)
    if _name in sys.modules and (_there is None or HOME not in Path(_there).resolve().parents):
        raise ImportError(
            f"another package called {_name} is already imported in this process ({_there}), and "
            f"secondhand has one of that name (as Hugging Face's datasets has): use it in a process of "
            "its own, as by the command `secondhand predict MODEL FILE...`",
            name=_name,
        )
if sys.path[:1] != [str(HOME)]:
    sys.path.insert(0, str(HOME))

#: Module of each name for programs; fields add others (`secondhand.names`). It is imported when the name is first used, because some need torch.
_HOMES = {
    "Prediction": "learners.inference.predictions",
    "Predictor": "learners.inference.predictor",
    "SecondhandError": "datasets.core.errors",
    "embed": "learners.inference.embedding",
    "finetune": "learners.finetune",
    "learner": "learners.runs.session",
    "load_model": "learners.model.places",
    "load_predictor": "learners.loading.predictor",
    "save_learner": "learners.runs.session",
    "vision_learner": "learners.runs.session",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif not name.startswith("_") and name in _names_of_fields():
        value = _names_of_fields()[name].get()
    else:
        from datasets.core.shipped import needed_for

        raise AttributeError(f"module {__name__!r} has no attribute {name!r}{needed_for(name)}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, *_names_of_fields()]


def _names_of_fields() -> Mapping[str, Name]:
    """What fields add."""
    from secondhand.names import NAMES

    return NAMES.ours()
