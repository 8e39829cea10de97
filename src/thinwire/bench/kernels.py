"""Kernels against plain torch, numpy, and the floor: the time that memory takes to add as many numbers in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from thinwire.bench.contests import OPERATIONS, Call, Contest, Inputs, Vector, draw_inputs, many_pieces, one_piece
from thinwire.bench.grid import Measured, grid, show_ms, show_times
from thinwire.bench.timing import Timing, busy_ms, gpu_clock, side_by_side, wall_clock
from thinwire.training.formatting import NOTHING

BYTES_COPIED = 8
"""A number is read and written."""
BYTES_ADDED = 12
"""Two numbers are read and one is written."""
CALLS = 20
"""Back to back, for what a busy stream sees."""


@dataclass(frozen=True)
class KernelRow(Measured):
    """One operation on one vector: milliseconds, and how they compare."""

    op: str
    device: str
    numel: int
    pieces: int
    distribution: str
    density: float | None
    ours: Timing
    torch: Timing
    numpy: Timing | None
    add: Timing
    """An in-place add of as many numbers."""
    stream: Timing | None
    """One of 20 calls back to back; on a GPU only."""
    copy_gb_s: float | None
    """Gigabytes that a copy within the GPU reads and writes in a second."""
    busy: Timing | None = None
    """The GPU alone, without what the host takes to launch."""

    @property
    def floor_ms(self) -> float:
        """The add as measured; on a GPU its 12 bytes a number at the speed of a copy."""
        return self.add.median if self.copy_gb_s is None else BYTES_ADDED * self.numel / self.copy_gb_s / 1e6

    def plain(self) -> dict[str, Any]:
        """For programs: medians, least and most, and the ratios."""
        names = ("op", "device", "numel", "pieces", "distribution", "density", "copy_gb_s", "floor_ms")
        times = {"ours": self.ours, "stream": self.stream, "torch": self.torch, "numpy": self.numpy, "add": self.add}
        times["busy"] = self.busy
        ours, floor = self.ours.median, self.floor_ms
        return {
            **{name: getattr(self, name) for name in names},
            **{f"{name}_ms": t and t.median for name, t in times.items()},
            **{f"{name}_spread_ms": t and (t.least, t.most) for name, t in times.items()},
            "over_floor": ours / floor,
            "stream_over_floor": self.stream and self.stream.median / floor,
            "busy_over_floor": self.busy and self.busy.median / floor,
            "torch_over_ours": self.torch.median / ours,
            "numpy_over_ours": self.numpy and self.numpy.median / ours,
        }


def bench_kernels(
    numel: int,
    densities: Sequence[float],
    repeats: int,
    operations: Sequence[str] = tuple(OPERATIONS),
    device: str = "cpu",
) -> Iterator[KernelRow]:
    """Every case of the named operations, one after the other."""
    measure = _OnGpu(numel, repeats) if device == "cuda" else _OnCpu(repeats)
    for name in operations:
        for vector in OPERATIONS[name].vectors(densities):
            yield _row(name, vector, numel, densities, measure)


def _row(name: str, vector: Vector, numel: int, densities: Sequence[float], measure: _OnCpu | _OnGpu) -> KernelRow:
    layout = many_pieces(numel) if vector.many else one_piece(numel)
    given = draw_inputs(vector.distribution, layout, vector.density or densities[0], measure.device)
    timed: dict[str, Any] = {"numpy": None, "stream": None, **measure(OPERATIONS[name].contest(given), given)}
    where = (measure.device.type, layout.numel, len(layout.pieces), vector.distribution, vector.density)
    return KernelRow(name, *where, copy_gb_s=measure.copy_gb_s, **timed)


class _OnCpu:
    """All contenders in turns, by the machine's clock."""

    device = torch.device("cpu")
    copy_gb_s = None

    def __init__(self, repeats: int) -> None:
        self._repeats = repeats

    def __call__(self, contest: Contest, given: Inputs) -> dict[str, Timing]:
        work = given.first.clone()
        array, first = work.numpy(), given.first.numpy()
        contenders = _contenders(contest, work, given)
        if contest.numpy is not None:
            contenders["numpy"] = partial(contest.numpy, array)
        # numpy copies on one thread: torch would leave its own threads spinning on the cores for some milliseconds
        return side_by_side(contenders, lambda: np.copyto(array, first), self._repeats, wall_clock)


class _OnGpu:
    """Ours, torch and an add from an idle GPU, by its events; then ours many times back to back."""

    device = torch.device("cuda")

    def __init__(self, numel: int, repeats: int) -> None:
        self._repeats = repeats
        self.copy_gb_s = _copy_speed(numel, self.device, repeats)

    def __call__(self, contest: Contest, given: Inputs) -> dict[str, Timing]:
        work = given.first.clone()
        timed = side_by_side(
            _contenders(contest, work, given), lambda: work.copy_(given.first), self._repeats, gpu_clock
        )
        timed["stream"] = _in_a_stream(contest.ours, given.first, self._repeats)
        if torch.cuda.is_available():
            taken = (busy_ms(partial(contest.ours, work.copy_(given.first))) for _ in range(self._repeats))
            timed["busy"] = Timing.of(list(taken))
        return timed


def _contenders(contest: Contest, work: Tensor, given: Inputs) -> dict[str, Callable[[], object]]:
    return {
        "ours": partial(contest.ours, work),
        "add": partial(work.add_, given.second),
        "torch": partial(contest.torch, work),
    }


def _in_a_stream(run: Call, first: Tensor, repeats: int) -> Timing:
    """The average of 20 calls back to back, each on a fresh copy of the same vector."""
    copies = [first.clone() for _ in range(CALLS)]

    def restore() -> None:
        for copy in copies:
            copy.copy_(first)

    def all_calls() -> None:
        for copy in copies:
            run(copy)

    return side_by_side({"ours": all_calls}, restore, repeats, gpu_clock)["ours"].scaled(1 / CALLS)


def _copy_speed(numel: int, device: torch.device, repeats: int) -> float:
    """Gigabytes a second that copies within the GPU move, read and written, back to back."""
    source = torch.zeros(numel, device=device)
    taken = _in_a_stream(lambda target: target.copy_(source), source, repeats)
    return BYTES_COPIED * numel / taken.median / 1e6


# ------------------------------------------------------------------------------------------------------------ the table


def kernel_table(rows: Sequence[KernelRow]) -> Table:
    """Milliseconds of ours, and ratios to the floor and to others; columns that no row fills are left out."""
    cells = [_cells(row) for row in rows]
    filled = [name for name in cells[0] if any(row[name] != NOTHING for row in cells)]
    table = grid(filled, ([row[name] for name in filled] for row in cells))
    table.collapse_padding = True
    return table


def _cells(row: KernelRow) -> dict[str, str]:
    plain = row.plain()
    return {
        "\nop": row.op,
        "\npieces": str(row.pieces),
        "\nnumbers": row.distribution,
        "\nkept": NOTHING if row.density is None else f"{row.density:g}",
        "ours\nms": show_ms(row.ours.median),
        "least - most\nms": f"{show_ms(row.ours.least)} - {show_ms(row.ours.most)}",
        "stream\nms": show_ms(plain["stream_ms"]),
        "busy\nms": show_ms(plain["busy_ms"]),
        "floor\nms": show_ms(row.floor_ms),
        "x\nfloor": show_times(plain["over_floor"]),
        "stream\nx floor": show_times(plain["stream_over_floor"]),
        "busy\nx floor": show_times(plain["busy_over_floor"]),
        "torch\n/ ours": show_times(plain["torch_over_ours"]),
        "numpy\n/ ours": show_times(plain["numpy_over_ours"]),
    }


def floor_line(rows: Sequence[KernelRow]) -> str:
    """The floor, and how it was found."""
    first = rows[0]
    added = f"in-place add {show_ms(first.add.median)} ms"
    if first.copy_gb_s is None:
        return f"floor: {added}, measured anew in each row"
    return (
        f"floor: {BYTES_ADDED} bytes a number at {first.copy_gb_s:,.0f} GB/s, the speed of a copy within the GPU: "
        f"{show_ms(first.floor_ms)} ms; {added}"
    )


# ----------------------------------------------------------- calls on few numbers: dispatch and Python are all there is


AT_A_TIME = 100
"""Calls of one measured turn, on few numbers."""
DENSITY = 0.01
ADD = "in-place add"


@dataclass(frozen=True)
class CallRow(Measured):
    """One operation on so many normal numbers: microseconds a call."""

    op: str
    numel: int
    ours: Timing
    torch: Timing
    """The usual torch code of the operation; for the add, the add itself."""


def bench_calls(numel: int, operations: Sequence[str], repeats: int) -> Iterator[CallRow]:
    """An add in place first, as the least that a call of torch takes; then each operation beside torch's code."""
    given = draw_inputs("normal", one_piece(numel), DENSITY, torch.device("cpu"))
    add = _microseconds({"add": lambda work: work.add_(given.second)}, given.first, repeats)["add"]
    yield CallRow(ADD, numel, add, add)
    for name in operations:
        contest = OPERATIONS[name].contest(given)
        taken = _microseconds({"ours": contest.ours, "torch": contest.torch}, given.first, repeats)
        yield CallRow(name, numel, taken["ours"], taken["torch"])


def _microseconds(calls: dict[str, Call], first: torch.Tensor, repeats: int) -> dict[str, Timing]:
    """Of one call among a hundred, which all change the same vector; every turn begins with it as it was."""
    work = first.clone()
    many = {name: partial(_many, call, work) for name, call in calls.items()}
    times = side_by_side(many, partial(work.copy_, first), repeats)
    return {name: time.scaled(1e3 / AT_A_TIME) for name, time in times.items()}


def _many(call: Callable[[torch.Tensor], object], work: torch.Tensor) -> None:
    for _ in range(AT_A_TIME):
        call(work)


def call_table(rows: Sequence[CallRow]) -> Table:
    """One row an operation."""
    return grid(
        ("op", "µs a call", "least - most", "torch", "torch / ours"),
        (
            (
                row.op,
                f"{row.ours.median:.1f}",
                f"{row.ours.least:.1f} - {row.ours.most:.1f}",
                f"{row.torch.median:.1f}",
                show_times(row.torch.median / row.ours.median),
            )
            for row in rows
        ),
    )
