"""Compiled kernels are kept on disk until the source of any of them changes."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import pytest

from thinwire.ops.cpu import one_pass, select_largest
from thinwire.ops.cpu.compiler import FOLDERS, compiled
from thinwire.version import source_digest


def test_kernels_are_looked_up_by_all_their_sources() -> None:
    """Both of another file and of the lock-free engine, which compiles with other options."""
    from thinwire.linear.steps.walk import walk_sparse

    for kernel in (select_largest.settle, one_pass.collect, walk_sparse):
        key = kernel._cache._index_key((), kernel.targetctx.codegen())
        assert key[-2:] == tuple(source_digest(folder) for folder in FOLDERS)
    assert all((folder / "__init__.py").is_file() for folder in FOLDERS)


def test_what_is_compiled_is_what_was_written() -> None:
    @compiled(error_model="numpy")
    def half(x: float) -> Any:
        return x / 0.0

    assert half(1.0) == float("inf")


def test_an_index_of_an_older_version_is_thrown_away(monkeypatch: pytest.MonkeyPatch) -> None:
    """numba pickles the types of arguments by name: one of a file that has another name now cannot be read."""

    @compiled
    def twice(x: float) -> float:
        return 2 * x

    kept = twice._cache
    monkeypatch.setattr(kept._cache_file, "_load_index", lambda: import_module("thinwire.no_longer_here"))
    flushed = []
    monkeypatch.setattr(kept, "flush", lambda: flushed.append(True) or monkeypatch.undo())
    assert twice(2.0) == 4.0
    assert flushed == [True]
