"""Settings as dataclass fields that are also flags, with valid ranges and ``--config FILE``.

A settings file is untrusted. It holds numbers, words and short lists, one setting a line; anything else
that YAML can express (objects, deep nesting, aliases) is refused before it is constructed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from functools import cache, partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, TypeVar

from datasets.core.errors import SecondhandError, one_line, quoted
from datasets.core.shipped import needed_for

if TYPE_CHECKING:
    from datasets.core.registry import Registry

_MAX_BYTES = 1 << 20
_MAX_LIST = 1000
_DEEPEST = 50  # brackets open at once; PyYAML follows each by a call
_LONGEST = 40  # characters of a number: PyYAML takes the square of them for some, and Python has no end of digits
_LARGEST = 2**63  # of whole numbers


class Limits(NamedTuple):
    """Valid range of a setting: at least ``low`` or above ``above``, at most ``high`` or below ``below``.

    ``word`` : a word that is valid instead of a number. ``like`` : an example.
    """

    low: float | None = None
    above: float | None = None
    high: float | None = None
    below: float | None = None
    word: str | None = None
    like: float | None = None

    def holds(self, value: float | str) -> bool:
        """Whether a value is in the range; False for NaN and infinity."""
        if isinstance(value, str):
            return value == self.word
        return (
            (self.low is None or value >= self.low)
            and (self.above is None or value > self.above)
            and (self.high is None or value <= self.high)
            and (self.below is None or value < self.below)
            and (-_LARGEST < value < _LARGEST if isinstance(value, int) else isfinite(value))
        )

    def __str__(self) -> str:
        first = f"above {self.above:.12g}" if self.low is None else f"{self.low:.12g}"
        if self.high is not None:
            first += f", at most {self.high:.12g}" if self.low is None else f" to {self.high:.12g}"
        elif self.below is not None:
            first += f" {'and' if self.low is None else 'to'} below {self.below:.12g}"
        elif self.low is not None:
            first += " or more"
        word = "" if self.word is None else f"{self.word}, or "
        return word + first + ("" if self.like is None else f", such as {self.like:.12g}")


S = TypeVar("S")


def option(
    default: Any,
    help: str | Callable[[], str],
    *,
    bare: Any = None,
    read_type: Any = None,
    limits: Limits | None = None,
    names: Callable[[], Registry[Any]] | None = None,
    metavar: str | None = None,
    means: str = "",
    once: bool = False,
    positional: bool = False,
) -> Any:
    """A dataclass field that is also a flag; a required one if ``default`` is MISSING.

    Parameters
    ----------
    help : a plain sentence, with the unit; it names the default where that is None. A function, where fields are to be
        asked for a part of it, is called as it is shown.
    bare : value if the flag is given without one.
    read_type : type of the flag, if not that of the field.
    limits : range that `Checked.check` enforces.
    names : returns the registry that has the value, which `Checked.check` enforces; the help lists what is in it.
    metavar : placeholder of the value in the help; that of the type if None.
    means : what the value is, for flags that other words seem to fit as well.
    once : giving it twice is an error, because both may be meant; of other flags the last one counts, as a script adds
        what it wants otherwise.
    positional : a word without a flag, see `positional`.
    """
    metadata = {
        "help": help, "bare": bare, "read": read_type, "span": limits, "names": names, "metavar": metavar,
        "means": means, "once": once, "positional": positional,
    }  # fmt: skip
    if isinstance(default, list):
        return field(default_factory=lambda: [*default], metadata=metadata)
    return field(default=default, metadata=metadata)


def positional(help: str | Callable[[], str], default: Any = MISSING) -> Any:
    """A dataclass field that is a word without a flag, or all such words if it is a list."""
    return option(default, help, positional=True)


def default_of(item: Field[Any]) -> Any:
    """Default value of a setting; MISSING if it has none."""
    return item.default if item.default_factory is MISSING else item.default_factory()


def flag(name: str) -> str:
    """Flag of a setting, such as ``--label-column``."""
    return "--" + name.rstrip("_").replace("_", "-")


@dataclass(frozen=True)
class Given:
    """A setting with its value. As text it is what the user types, such as ``--bs 16`` or ``--no-tta``."""

    item: Field[Any]
    value: Any

    @property
    def name(self) -> str:
        """What the user types for any value: ``--bs``, or ``PATH`` where it has no flag."""
        return name_of(self.item)

    def __bool__(self) -> bool:
        """Whether it has another value than its default."""
        return bool(self.value != default_of(self.item))

    def __str__(self) -> str:
        value, typed = self.value, self.name
        if isinstance(value, bool):
            return typed if value else typed.replace("--", "--no-", 1)
        if isinstance(value, list):
            value = " ".join(map(str, value[:1])) + " …" * (len(value) > 1)
        if isinstance(value, float):
            value = f"{value:.15g}"  # a GPS time has ten digits before the point
        return str(value) if self.item.metadata["positional"] else f"{typed} {value}"


#: The settings of a call by name, without the "_" at the end of ``from_``.
Call = Mapping[str, Given]


def settings_of(sections: Iterable[Any]) -> dict[str, Given]:
    """The settings of dataclasses, by name."""
    return {
        item.name.rstrip("_"): Given(item, getattr(section, item.name))
        for section in sections
        for item in fields(section)
        if item.metadata
    }


def take_sections(values: dict[str, Any], sections: Iterable[type[S]]) -> tuple[S, ...]:
    """The sections, with their settings, which are taken out of ``values``; the others have their defaults."""
    added = list[S]()
    for section in sections:
        names = [item.name for item in fields(section)]  # type: ignore[arg-type]
        added.append(section(**{name: values.pop(name) for name in names if name in values}))
    return tuple(added)


class Condition(Protocol):
    """What a table holds."""

    def problem(self, call: Call) -> str:
        """What is wrong with a call, and the remedy; "" if nothing is."""


def check_conditions(table: Iterable[Condition], call: Call) -> None:
    """Raise SecondhandError that names everything that is wrong with a call."""
    if wrong := problems(table, call):
        raise SecondhandError(f"invalid settings: {'; '.join(wrong)}")


def problems(table: Iterable[Condition], call: Call) -> list[str]:
    """What is wrong with a call, and the remedies."""
    return [*filter(None, (condition.problem(call) for condition in table))]


def name_of(item: Field[Any]) -> str:
    """A setting as it is typed: ``--bs``, or ``PATH`` where it has no flag."""
    return item.name.removesuffix("s").upper() if item.metadata["positional"] else flag(item.name)


def read_settings(file: Path, *, flag: str = "--config") -> dict[str, Any]:
    """Settings in a YAML file, by name.

    Parameters
    ----------
    flag : that named the file, for the messages.

    Raises
    ------
    SecondhandError : it cannot be read, is not a list of settings, or holds a value that no setting can
        have.
    """
    wrong = partial(_settings_error, f"{flag} {file}")
    try:
        with open(file, "rb") as stream:
            data = stream.read(_MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        raise wrong(f"cannot be read ({error})") from None
    if len(data) > _MAX_BYTES:
        raise wrong(f"larger than {_MAX_BYTES >> 10} kB, so it is not a settings file")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise wrong(f"cannot be read ({error})") from None
    return checked_settings(f"{flag} {file}", text)


def checked_settings(source: str, text: str) -> dict[str, Any]:
    """Settings in a YAML text, by name; ``source`` is named in errors.

    Raises
    ------
    SecondhandError : it is not a list of settings, or holds a value that no setting can have.
    """
    import yaml

    wrong = partial(_settings_error, source)
    try:
        _check_depth(source, text)
        content = yaml.load(text, _loader())
    except SecondhandError:
        raise
    # PyYAML's own errors, and those of the types that it converts text to: dates, numbers, bytes.
    except Exception as error:
        raise wrong(f"cannot be read ({str(error)[:200] or type(error).__name__})") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise wrong("not a list of 'name: value' lines")
    for name, value in content.items():
        values = value if isinstance(value, list) else [value]
        if len(values) > _MAX_LIST or not all(
            one is None or type(one) in (str, int, float, bool) for one in values
        ):
            raise wrong(f"{quoted(name)} is not a number, a word or a short list of them")
        if any(type(one) is str and not one.isprintable() for one in values):
            raise wrong(f"{quoted(name)} contains characters that cannot be printed")
    return content


def check_names(
    source: Path | str, content: dict[str, Any], names: Collection[str], *, flag: str = "--config"
) -> None:
    """Raise SecondhandError that lists all unknown keys."""
    wrong = [quoted(key) for key in content if key not in names]
    if wrong:
        import difflib

        suggestions = []
        for key in wrong[:20]:
            near = difflib.get_close_matches(key.strip("'"), names, n=1)
            suggestions.append(key + (f" (did you mean {near[0]!r}?)" if near else ""))
        more = f" and {len(wrong) - 20} more" if len(wrong) > 20 else ""
        flags = (f"--{str(key).replace('_', '-')}" for key in content if key not in names)
        missed = next(filter(None, map(needed_for, flags)), "")
        raise _settings_error(f"{flag} {source}", f"unknown {', '.join(suggestions)}{more}{missed}")


def as_yaml(values: Mapping[str, Any]) -> str:
    """Settings as YAML that ``--config`` reads back."""
    import yaml

    plain = {name: str(v) if isinstance(v, Path) else v for name, v in values.items()}
    plain = {name: [*v] if isinstance(v, tuple) else v for name, v in plain.items()}
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)


class Checked:
    """Base of dataclasses of settings. ``conflicts`` : what excludes what."""

    conflicts: ClassVar[tuple[Condition, ...]] = ()

    @property
    def sections(self) -> Mapping[str, Any]:
        """The dataclasses that hold the values, by name."""
        return {"": self}

    @property
    def call(self) -> Call:
        """The settings by name."""
        return settings_of(self.sections.values())

    @property
    def table(self) -> Iterable[Condition]:
        """`conflicts`, and those of the sections that have some."""
        return self.conflicts

    def check(self) -> None:
        """Raise SecondhandError that names every value out of its range and everything that excludes each other."""
        wrong = []
        for section in self.sections.values():
            for item in fields(section):
                value, span, names = (
                    getattr(section, item.name), item.metadata.get("span"), item.metadata.get("names"),
                )  # fmt: skip
                if span is not None and value is not None and not span.holds(value):
                    wrong.append(f"{flag(item.name)} {value} (must be {span})")
                if names is not None and value != item.default:
                    problem = names().problem(value)
                    wrong += [f"{flag(item.name)} {value} ({problem})"] * bool(problem)
        wrong += problems(self.table, self.call)
        if wrong:
            raise SecondhandError(f"invalid settings: {'; '.join(wrong)}")


@cache
def _loader() -> Any:
    """PyYAML's safe loader, without numbers that are longer than any setting."""
    from yaml import SafeLoader

    class Loader(SafeLoader):
        pass

    def short(construct: Callable[[Any, Any], Any], loader: Any, node: Any) -> Any:
        if len(str(node.value)) > _LONGEST:
            raise ValueError(f"a number of {len(node.value)} characters")
        return construct(loader, node)

    for kind in ("int", "float"):
        tag = f"tag:yaml.org,2002:{kind}"
        Loader.add_constructor(tag, partial(short, SafeLoader.yaml_constructors[tag]))
    return Loader


def _check_depth(source: str, text: str) -> None:
    depth = deepest = 0
    for character in text:
        depth = max(depth + (character in "[{") - (character in "]}"), 0)
        deepest = max(deepest, depth)
    indent = max((len(line) - len(line.lstrip(" -?")) for line in text.split("\n")), default=0)
    if max(deepest, indent) > _DEEPEST:
        raise _settings_error(
            source, f"nested more than {_DEEPEST} levels deep, but settings are plain values"
        )


def _settings_error(source: str, reason: str) -> SecondhandError:
    return SecondhandError(f"{source}: {one_line(' '.join(reason.split()))}")
