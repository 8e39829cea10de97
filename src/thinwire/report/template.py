"""Templates: one self-contained HTML text from a template, the style, the script that draws, and data.

The script is our own: plotly, which drew the charts before, comes as one file of 4.8 MB and put it into every page.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from thinwire.extras import require
from thinwire.training.destination import write_whole

PURPOSE = "the report page"


REPORT = {"jinja2": "report"}
"""What a page needs, and the extra that brings it."""


def fill(template: str, data: Any, sections: Sequence[Any], footer: str) -> str:
    """The page of these sections; `data` is what its script draws."""
    jinja = require("jinja2", "report", PURPOSE)
    environment = jinja.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(_read(template))
    parts = {"style": _read("style.css"), "script": _read("charts.js"), "data": _script_json(data)}
    text: str = page.render(sections=sections, footer=footer, **parts)
    return text


def write_text(page: str, path: Path) -> None:
    """Write a page, whole or not at all; a path that cannot be written is a `ConfigError`."""
    write_whole(page, path, "page", "it")


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
