"""The examples in docstrings print what they say."""

from __future__ import annotations

import doctest
import importlib
import pkgutil

import pytest

import thinwire

MODULES = [m.name for m in pkgutil.walk_packages(thinwire.__path__, "thinwire.") if ".cli" not in m.name]

FRAMEWORKS = {
    "thinwire.lightning": "pytorch_lightning",
    "thinwire.accelerate": "accelerate",
    "thinwire.transformers": "transformers",
}


@pytest.mark.parametrize("module", MODULES)
def test_docstrings(module: str) -> None:
    if module.startswith("thinwire.ops.cuda"):
        pytest.importorskip("triton")
    if module in FRAMEWORKS:
        pytest.importorskip(FRAMEWORKS[module], exc_type=ModuleNotFoundError)
    assert doctest.testmod(importlib.import_module(module)).failed == 0
