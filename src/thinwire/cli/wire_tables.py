"""The tables of `thinwire bench wire`: bits a position, time to encode and decode them, and whole messages."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table

from thinwire.bench.timing import Timing
from thinwire.bench.wire import MESSAGES, CodeResult, WireRow
from thinwire.training.formatting import NOTHING


def size_table(rows: Sequence[WireRow]) -> Table:
    """Bits a position: the entropy, then every code, one column a density."""
    table = _table("bits a position", rows)
    table.add_row("entropy, log2 C(n, k) / k", *(f"{row.entropy:.2f}" for row in rows), style="dim")
    _add_codes(table, rows, lambda code: NOTHING if code.bits is None else f"{code.bits:.2f}")
    return table


def time_table(rows: Sequence[WireRow]) -> Table:
    """Milliseconds to encode and to decode the positions, one column a density."""
    table = _table("ms to encode / decode", rows)
    _add_codes(table, rows, lambda code: f"{_milliseconds(code.encode)} / {_milliseconds(code.decode)}")
    return table


def message_table(rows: Sequence[WireRow]) -> Table:
    """A whole message with its values, one row a density."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column("kept")
    for name in (
        "bits a number",
        "entropy + value",
        "x that",
        "int32 + value",
        "int64 + value",
        "top-k step",
        "pack",
        f"unpack and add {MESSAGES}",
        "x step",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        ours, least = row.ours + row.value_bits, row.entropy + row.value_bits
        bits = [f"{ours:.2f}", f"{least:.2f}", f"{ours / least:.3f}", *(f"{w + row.value_bits}" for w in (32, 64))]
        times = [f"{t:.1f} ms" for t in (row.memory_step_ms, row.pack_ms, row.unpack_and_add_ms)]
        table.add_row(f"{row.density:g}", *bits, *times, f"{row.unpack_and_add_over_step:.2f}")
    return table


def _table(first: str, rows: Sequence[WireRow]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    table.add_column(first)
    for row in rows:
        table.add_column(f"{row.density:g} kept", justify="right", no_wrap=True)
    return table


def _add_codes(table: Table, rows: Sequence[WireRow], cell: Callable[[CodeResult], str]) -> None:
    for same in zip(*(row.codes for row in rows), strict=True):
        missing = same[0].missing
        cells = [f"needs {missing}" if missing else cell(code) for code in same]
        table.add_row(same[0].name, *cells, style="dim" if missing else "")


def _milliseconds(timing: Timing | None) -> str:
    if timing is None:
        return NOTHING
    return f"{timing.median:.1f}" if timing.median >= 1 else f"{timing.median:.2f}"
