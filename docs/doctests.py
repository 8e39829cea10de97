"""Doctest examples in docstrings become code blocks of the API reference: Markdown would read `>>>` as quotations."""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"(?m)^>>> .*(?:\n(?!\s*$).*)*")


def fenced(text: str) -> str:
    """The text with every doctest example in a fence."""
    return EXAMPLE.sub(lambda match: f"```pycon\n{match.group()}\n```", text)


class Doctests(griffe.Extension):
    """Rewrites docstrings as they are read."""

    def on_instance(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)
