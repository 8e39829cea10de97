"""Optional packages: imported when first needed, with the line that installs them when they are missing."""

from __future__ import annotations

from importlib import import_module
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
