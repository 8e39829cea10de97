"""The text form of a method: `name(value, option=value)`, printed from its dataclass fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import MISSING, fields
from numbers import Integral, Real
from typing import Any, ClassVar

_BARE = re.compile(r"[A-Za-z_]\w*")


def show(value: object) -> str:
    """A field's value as the spec writes it: numbers as they are, words bare, other text quoted."""
    if isinstance(value, str):
        return value if _BARE.fullmatch(value) and value not in {"True", "False", "None"} else repr(value)
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key!r}: {show(item)}" for key, item in value.items()) + "}"
    if isinstance(value, tuple):
        return f"({', '.join(map(show, value))}{',' if len(value) == 1 else ''})"
    if isinstance(value, bool) or value is None:
        return repr(value)
    if isinstance(value, Integral):  # numpy's numbers too, whose repr names their type
        return repr(int(value))
    return repr(float(value)) if isinstance(value, Real) else str(value)


class Named:
    """A frozen value with a short name, whose `str` is the text that `parse` reads back."""

    name: ClassVar[str]
    positional: ClassVar[int] = 1
    """How many leading fields are printed without their name."""

    def __str__(self) -> str:
        words: list[str] = []
        bare = True
        for place, field in enumerate(fields(self)):  # type: ignore[arg-type]  # every Named is a dataclass
            value: Any = getattr(self, field.name)
            is_default = field.default is not MISSING and value == field.default
            if is_default:
                bare = False
            elif bare and place < self.positional:
                words.append(show(value))
            else:
                words.append(f"{field.name}={show(value)}")
        return f"{self.name}({', '.join(words)})"
