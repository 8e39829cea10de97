"""The name under which `thinwire.linear` was known: it is a library of linear models, not an engine for any rule."""

from importlib import import_module


def __getattr__(name: str) -> object:
    """Whatever `thinwire.linear` has; imported when first asked for, because it lies above the engines."""
    return getattr(import_module("thinwire.linear"), name)
