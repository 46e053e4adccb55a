"""Seeded damage to text: tables, JSON and YAML, by what they mean and by what they are made of."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

Rng = np.random.Generator

#: What stands where a value should.
NASTY: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 1.5, 2**31, 2**63, 10**12, -(10**12), 10**400, 1e308, 1e-320,
    float("nan"), float("inf"), float("-inf"), "", " ", "0", "nan", "1e999", "x" * 10_000, "\0", "\x1b[31m",
    "\ud800", "../../etc/passwd", "/etc/passwd", "hf-hub:someone/something", "http://localhost/x",
    "file:///etc/passwd", "<script>alert(1)</script>", "\u202egnp.exe", "%s%n{0}", "a\nb", [], {}, [[]],
    [[[[[]]]]], {"a": {"b": {"c": 1}}}, [0] * 1000, [None], [1, "a"], [float("nan")] * 3, "embedded",
    "vit_giant_patch14_dinov2",
)  # fmt: skip
YAML_NASTY = (
    "", "~", "true", "no", "-1", "0", "1e999", ".nan", "-.inf", "0x", "0o8", "1_000", "9" * 5000, "2024-99-99",
    "12:30:99", "!!int ''", "!!float x", "!!binary '?'", "!!python/object/apply:os.system [id]", "!!set {a, b}",
    "!!timestamp x", "&a [*a]", "*nothing", "[" * 3000, "{" * 3000, "{a: " * 300, "'open", '"\\0\\x1b"', "'\t'", "|\n  text",
    ">-\n x", "<<: 1", "[1, 2, [3, [4]]]", "{a: 1}", "../../etc/passwd", "x" * 100_000, "\u202e", "- 1", "? a",
    "!<tag:x> 1", "%YAML 9.9", "--- 1", "...", "@at", "`tick`", "auto", "best",
)  # fmt: skip
CSV_NASTY = (
    "", " ", "nan", "None", "unknown", "inf", "-1", "1e999", "9" * 5000, "\0", '"', '"open', "''", "\r", "\n", "a\nb",
    "../../../etc/passwd", "/etc/passwd", "/dev/zero", "/proc/self/mem", "x" * 5000, "x" * 200_000, "\u202e", "\x1b[2J", "\ufeff",
    "<b>", "=1+1", "|", ";", "\t", "\ud800", "train", "nowhere", "cat ", "CAT", "1" * 400, ".", "..", "\\\\host\\share",
)  # fmt: skip
LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{after}: &{after} [{', '.join([f'*{name}'] * 9)}]\n"
    for name, after in zip("abcdefgh", "bcdefghi", strict=True)
)


def pick(values: tuple[Any, ...], rng: Rng) -> Any:
    return values[rng.integers(len(values))]


def mutate_json(data: bytes, rng: Rng) -> bytes:
    """A value replaced, a key dropped, renamed or doubled; or the text itself changed."""
    try:
        content = json.loads(data)
    except (ValueError, RecursionError):
        content = None
    way = int(rng.integers(10))
    if way < 7 and isinstance(content, dict | list) and content:
        holder, key = pick(tuple(_places(content)), rng)
        if way < 5 or isinstance(holder, list):
            holder[key] = _near(holder[key], rng) if rng.random() < 0.3 else pick(NASTY, rng)
        elif way == 5:
            del holder[key]
        else:
            holder[f"{key}{pick(('', '_', 's', chr(0)), rng)}"] = holder.pop(key)
        return _text(content)
    text = data.decode("utf-8", "replace")
    if way == 7:
        return mutate_digits(text, rng).encode()
    if way == 8:  # a key twice: which of the two counts?
        return text.replace('"', '"format": 1, "', 1).encode()
    deep = 10 ** int(rng.integers(2, 6))
    opened = pick(("[", '{"a":'), rng) * deep
    place = int(rng.integers(len(text) + 1))
    return (text[:place] + opened + text[place:]).encode()


def _text(content: Any) -> bytes:
    return json.dumps(content).encode("utf-8")


def _places(content: Any) -> list[tuple[Any, Any]]:
    """Every (holder, key) in nested lists and objects."""
    found: list[tuple[Any, Any]] = []
    todo = [content]
    while todo:
        holder = todo.pop()
        for key in list(holder) if isinstance(holder, dict) else range(len(holder)):
            found.append((holder, key))
            if isinstance(holder[key], dict | list):
                todo.append(holder[key])
    return found


def _near(value: Any, rng: Rng) -> Any:
    """Something of the same type that is nearly as good."""
    if isinstance(value, bool) or value is None:
        return not value
    if isinstance(value, int):
        return value + int(rng.integers(-3, 4)) if rng.random() < 0.5 else value * 1000
    if isinstance(value, float):
        return value * 10 ** float(rng.uniform(-6, 6))
    if isinstance(value, str):
        return value[: rng.integers(len(value) + 1)] + pick(("", "é", "_", "\0"), rng)
    if isinstance(value, list):
        return value[:-1] if rng.random() < 0.5 else value * 2
    return {}


def mutate_digits(text: str, rng: Rng) -> str:
    """One digit becomes very many, or a sign, or an exponent."""
    places = [n for n, c in enumerate(text) if c.isdigit()]
    if not places:
        return text
    place = places[rng.integers(len(places))]
    new = pick(("9" * 5000, "9" * 30, "-1", "e99", "1e400", "NaN", "Infinity", ".", "0x1"), rng)
    return text[:place] + str(new) + text[place + 1 :]


def mutate_csv(data: bytes, rng: Rng) -> bytes:
    """Cells and rows changed, dropped, doubled; and what the file is written with."""
    text = data.decode("utf-8", "surrogateescape")
    rows = [line.split(",") for line in text.split("\n")]
    row = rows[rng.integers(len(rows))] if rng.random() < 0.8 else rows[0]
    way = int(rng.integers(9))
    if way < 4:
        row[rng.integers(len(row))] = pick(CSV_NASTY, rng)
    elif way == 4:
        row.pop(int(rng.integers(len(row))))
    elif way == 5:
        row.insert(int(rng.integers(len(row) + 1)), pick(CSV_NASTY, rng))
    elif way == 6:
        rows[:] = rows * 50 if len(rows) < 2000 else rows[:1]
    elif way == 7:
        return text.encode(pick(("utf-16", "utf-8-sig", "utf-32"), rng), "replace")
    else:
        row.extend(["x"] * int(10 ** rng.integers(1, 5)))
    return "\n".join(",".join(cells) for cells in rows).encode("utf-8", "surrogatepass")


def mutate_yaml(data: bytes, rng: Rng) -> bytes:
    """A value, a key or a line changed; now and then a document that unfolds without end."""
    lines = data.decode("utf-8", "replace").split("\n")
    place = int(rng.integers(len(lines)))
    key, colon, _ = lines[place].partition(":")
    way = int(rng.integers(9))
    if way < 4:
        lines[place] = f"{key}{colon or ':'} {pick(YAML_NASTY, rng)}"
    elif way == 4:
        lines[place] = str(pick(YAML_NASTY, rng))
    elif way == 5:
        lines.insert(place, lines[rng.integers(len(lines))])
    elif way == 6:
        lines[place] = " " * int(rng.integers(1, 5)) + lines[place]
    elif way == 7:
        return mutate_digits("\n".join(lines), rng).encode()
    else:
        lines = [*LAUGHS.split("\n")[:-1], f"views: *{pick(tuple('abcdefghi'), rng)}", *lines]
    return "\n".join(lines).encode("utf-8", "replace")
