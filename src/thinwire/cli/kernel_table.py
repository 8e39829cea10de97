"""The table of `thinwire bench kernels`: one row an operation and a vector, times and how they compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from rich.box import SIMPLE_HEAD
from rich.table import Table

from thinwire.bench.kernels import BYTES_ADDED, KernelRow
from thinwire.bench.timing import Timing
from thinwire.training.formatting import NOTHING, plural
from thinwire.training.provenance import cpu_model


def kernel_table(rows: Sequence[KernelRow]) -> Table:
    """Milliseconds of ours, and ratios to the floor and to others; columns that no row fills are left out."""
    cells = [_cells(row) for row in rows]
    table = Table(box=SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    filled = [name for name in cells[0] if any(row[name] != NOTHING for row in cells)]
    for name in filled:
        table.add_column(name, justify="left" if name == "\nop" else "right", no_wrap=True)
    for row in cells:
        table.add_row(*(row[name] for name in filled))
    return table


def _cells(row: KernelRow) -> dict[str, str]:
    plain = row.plain()
    return {
        "\nop": row.op,
        "\npieces": str(row.pieces),
        "\nnumbers": row.distribution,
        "\nkept": NOTHING if row.density is None else f"{row.density:g}",
        "ours\nms": _ms(row.ours.median),
        "least - most\nms": _spread(row.ours),
        "stream\nms": NOTHING if row.stream is None else _ms(row.stream.median),
        "busy\nms": NOTHING if row.busy is None else _ms(row.busy.median),
        "floor\nms": _ms(row.floor_ms),
        "x\nfloor": _ratio(plain["over_floor"]),
        "stream\nx floor": _ratio(plain["stream_over_floor"]),
        "busy\nx floor": _ratio(plain["busy_over_floor"]),
        "torch\n/ ours": _ratio(plain["torch_over_ours"]),
        "numpy\n/ ours": _ratio(plain["numpy_over_ours"]),
    }


def _ms(value: float) -> str:
    """Three digits or more."""
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}" if value >= 1 else f"{value:.3f}"


def _spread(timing: Timing) -> str:
    return f"{_ms(timing.least)} - {_ms(timing.most)}"


def _ratio(value: Any) -> str:
    return NOTHING if value is None else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def floor_line(rows: Sequence[KernelRow]) -> str:
    """What the floor is and how it was found."""
    first = rows[0]
    added = f"in-place add {_ms(first.add.median)} ms"
    if first.copy_gb_s is None:
        return f"floor: {added}, measured anew in each row"
    return (
        f"floor: {BYTES_ADDED} bytes a number at {first.copy_gb_s:,.0f} GB/s, the speed of a copy within the GPU: "
        f"{_ms(first.floor_ms)} ms; {added}"
    )


def machine(device: str) -> str:
    """The processor and its threads, or the GPU."""
    if device == "cuda":
        return torch.cuda.get_device_name()
    return f"{cpu_model()}, {plural(torch.get_num_threads(), 'thread')}"
