"""Plug-ins: files of a user's own, run for the tasks and rules that they register."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from thinwire.errors import ConfigError, ThinwireError


def load_plugin(path: Path) -> ModuleType:
    """Run a Python file as a module, once in a process; it is known by its path."""
    name = str(path.resolve())
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise ConfigError(f"plug-in {path} is no Python file; give the path of one that ends in .py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        if isinstance(error, ThinwireError):
            raise
        raise ConfigError(f"plug-in {path} failed: {type(error).__name__}: {error}") from error
    return module
