"""Templates: one self-contained HTML text from a template, the style, plotly's script and data."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from thinwire.experiments.destination import write_whole
from thinwire.extras import require

PURPOSE = "the report page"


def check_report_packages() -> None:
    """A `BackendError` now rather than after the work, where plotly or jinja2 is missing."""
    require("plotly", "report", PURPOSE)
    require("jinja2", "report", PURPOSE)


def fill(template: str, sections: Any, data: Any) -> str:
    """The page of these sections; `data` is what its script draws."""
    jinja = require("jinja2", "report", PURPOSE)
    plotly = require("plotly.offline", "report", PURPOSE)
    environment = jinja.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    page = environment.from_string(_read(template))
    text: str = page.render(
        sections=sections, style=_read("style.css"), plotly_js=plotly.get_plotlyjs(), data=_script_json(data)
    )
    return text


def write_text(page: str, path: Path) -> None:
    """Write a page, whole or not at all; a path that cannot be written is a `ConfigError`."""
    write_whole(page, path, "page", "it")


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _script_json(value: Any) -> str:
    """JSON that may stand inside a script element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")
