"""Optional packages: imported when first needed, with the line that installs them when they are missing."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from thinwire.errors import BackendError


def require(module: str, extra: str, purpose: str) -> Any:
    """The module, or a `BackendError` naming the extra that brings it.

    >>> require("no_such_package", "tasks", "the digits task")
    Traceback (most recent call last):
    thinwire.errors.BackendError: the digits task needs the package 'no_such_package', which is not installed; run
      pip install 'thinwire[tasks]'
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as missing:
        package = module.partition(".")[0]
        if (missing.name or "").partition(".")[0] != package:
            raise  # the package is there and is itself broken: hiding that would mislead
        raise BackendError(
            f"{purpose} needs the package {package!r}, which is not installed; run\n  pip install 'thinwire[{extra}]'"
        ) from None


def check_packages(needed: Mapping[str, str], purpose: str) -> None:
    """A `BackendError` that names all packages that are missing, before any work; `needed` gives the extra of each.

    Nothing is imported.

    >>> check_packages({"json": "report", "no_such": "tasks", "nor_this": "fast"}, "the demo")
    Traceback (most recent call last):
    thinwire.errors.BackendError: the demo needs the packages 'no_such' and 'nor_this', which are not installed; run
      pip install 'thinwire[tasks,fast]'
    """
    missing = [name for name in needed if find_spec(name) is None]
    if missing:
        extras = ",".join(dict.fromkeys(needed[name] for name in missing))
        raise BackendError(f"{purpose} needs {_list(missing)} not installed; run\n  pip install 'thinwire[{extras}]'")


def _list(names: list[str]) -> str:
    quoted = " and ".join(map(repr, names))
    return f"the package {quoted}, which is" if len(names) == 1 else f"the packages {quoted}, which are"
