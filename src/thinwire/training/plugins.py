"""A user's own Python files, executed once in a process: what they register is then known there."""

from __future__ import annotations

import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from thinwire.errors import ConfigError

LOADED: dict[Path, str] = {}
"""The files that were executed here, with their modules' names; workers execute them too."""


def load_plugin(path: Path) -> None:
    """Execute a file, unless it was; what goes wrong in it is a `ConfigError` that names it."""
    place = path.expanduser().resolve()
    if place in LOADED:
        return
    if not place.is_file():
        raise ConfigError(f"--plugin {path}: there is no such file")
    name = f"thinwire_plugin_{len(LOADED)}_{place.stem}"
    loader = SourceFileLoader(name, str(place))
    spec = spec_from_loader(name, loader)
    assert spec is not None  # a loader was given
    module = sys.modules[name] = module_from_spec(spec)
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise ConfigError(f"--plugin {path}: {type(error).__name__}: {error}") from error
    LOADED[place] = name
