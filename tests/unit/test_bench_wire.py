"""The wire benchmark: every code gives its positions back, and what is not installed is said to be absent."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pytest

from thinwire.bench import wire as module
from thinwire.bench.timing import Timing
from thinwire.bench.wire import (
    OURS,
    Absent,
    CodeResult,
    PositionCode,
    WireRow,
    bench_wire,
    better_than_ours,
    codes,
    nbytes,
    size_table,
    time_table,
)


@pytest.mark.parametrize("share", [0.3, 0.1, 0.01])
def test_every_code_gives_the_positions_back(share: float) -> None:
    numel = 50_000
    positions = np.flatnonzero(np.random.default_rng(0).random(numel) < share)
    for code in codes(positions, numel):
        if isinstance(code, PositionCode):
            packed = code.encode()
            assert np.array_equal(code.decode(packed), positions), code.name
            assert 0 < nbytes(packed) <= 8 * positions.size


def test_what_is_not_installed_is_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    absent = [code for code in codes(np.arange(0, 100, 9), 100) if isinstance(code, Absent)]
    assert {code.package for code in absent} == {"pyroaring", "zstandard"}


def test_a_row_holds_every_code_and_the_tables_show_it() -> None:
    (row,) = bench_wire(20_000, [0.01], 1)
    assert {code.name for code in row.codes} >= {OURS, "int32", "int64", "12 bits in chunks", "roaring bitmap"}
    installed = find_spec("zstandard") is not None
    assert all((code.missing is None) == installed for code in row.codes if code.name.startswith("zstd"))
    assert size_table([row]).row_count == 1 + len(row.codes)
    assert time_table([row]).row_count == len(row.codes)


def test_what_beats_ours_is_named() -> None:
    timing = Timing(1.0, 1.0, 1.0)
    others = (CodeResult(OURS, 5.0, timing, timing), CodeResult("a", 4.0), CodeResult("b", 6.0), CodeResult("c"))
    row = WireRow(0.1, 10, 1, 4.0, 5.0, 32, 1.0, 1.0, 1.0, others)
    assert better_than_ours(row) == ["a (80.0% of ours)"]
