"""Every rank's state in a folder that another program fills: a framework's checkpoint, one file a rank.

No folder need be shared: a rank writes and reads its own file, and all agree on whether it went well.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from thinwire.checkpoint import merge_states, write_part
from thinwire.engines.ddp.agreement import told
from thinwire.errors import CheckpointError, CheckpointWarning, StateError, WireError
from thinwire.exchange import Exchange, Traffic

Folder = str | PathLike[str]
BLOCK = 1 << 24
"""Bytes of a state that travel at once."""


def part(folder: Folder, rank: int) -> Path:
    """Where a rank's file lies."""
    return Path(folder) / f"thinwire-rank{rank:05d}.pt"


def save_beside(exchange: Exchange, folder: Folder, state: Mapping[str, Any]) -> None:
    """Write every rank's part, each wholly or not at all; a failure on one rank is a `CheckpointError` on all."""
    path, problem = part(folder, exchange.rank), None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_part(path, dict(state))
    except Exception as error:  # whatever it is: the others are waiting, and must be told
        problem = error
    failures = told(exchange, None if problem is None else str(problem) or type(problem).__name__, "saving a state")
    for rank, failure in enumerate(failures):
        if failure is not None:
            raise CheckpointError(
                f"rank {rank} could not write {part(folder, rank)}: {failure}. Do not resume from this folder: the "
                "files of other ranks may be newer"
            ) from problem


def is_anywhere(exchange: Exchange, folder: Folder) -> bool:
    """Whether any rank sees any part in its folder."""
    here = any(Path(folder).glob("thinwire-rank*.pt"))
    return any(there for (there,) in exchange.everyone([int(here)], "looking for a state"))


def warn_of_nothing(checkpoint: object) -> None:
    """A checkpoint from before thinwire, or from which its files were taken."""
    warnings.warn(
        f"{checkpoint} holds no state of thinwire: model and optimizer are resumed, and memories begin empty",
        CheckpointWarning,
        stacklevel=2,
    )


def read_beside(folder: Folder, ranks: Exchange, workers: int) -> dict[str, Any]:
    """This rank's state; where another number of workers saved, the states of all of them as one."""
    mine = part(folder, ranks.rank)
    found = next((path for path in (mine, part(folder, 0)) if path.exists()), None)
    if found is None:
        raise StateError(f"{mine} is missing: each rank loads the file that it saved. {_COPY}")
    state = _read(found)
    if state.get("workers") != workers and ranks.size == workers:  # else a worker is many ranks, with shards
        return merge_states([_read(part(folder, each)) for each in range(int(state.get("workers", 1)))])
    if found != mine:
        raise StateError(f"{mine} is missing, of {ranks.size} files that were saved. {_COPY}")
    return state


_COPY = "Copy it here from the host that wrote it, or let all hosts share the folder"


def _read(path: Path) -> dict[str, Any]:
    """A part."""
    if not path.exists():
        raise StateError(f"{path} is missing, and another number of ranks needs all files. {_COPY}")
    try:
        state = _loaded(path)
    except Exception as error:  # of whatever type: what torch raises depends on the byte that is damaged
        raise StateError(f"{path} cannot be read, it is damaged: {type(error).__name__}: {error}") from error
    if not isinstance(state, dict):
        raise StateError(f"{path} holds a {type(state).__name__}, not the state of a handle")
    return state


def gather_states(exchange: Exchange, state: dict[str, Any], book: Callable[[Traffic], None]) -> dict[str, Any]:
    """All ranks' states as one on rank 0; elsewhere this rank's own. They travel as files would, block by block, so
    that only rank 0 needs room for them."""
    file = io.BytesIO()
    torch.save(state, file)
    mine = torch.frombuffer(file.getbuffer(), dtype=torch.uint8)
    sizes = [size for (size,) in exchange.everyone([mine.numel()], "the size of a state")]
    if not all(0 < size <= 2 * mine.numel() + BLOCK for size in sizes):
        raise WireError(f"states of {sizes} bytes were announced, of which this rank's has {mine.numel()}")
    files = [bytearray() for _ in sizes]
    for start in range(0, max(sizes), BLOCK):
        rows = _block(exchange, mine[start : start + BLOCK], min(BLOCK, max(sizes) - start), book)
        for row, size, other in zip(rows, sizes, files, strict=True):
            other += row[: max(0, size - start)].numpy().tobytes() if exchange.rank == 0 else b""
    return merge_states([_loaded(io.BytesIO(other)) for other in files]) if exchange.rank == 0 else state


def _block(exchange: Exchange, mine: Tensor, width: int, book: Callable[[Traffic], None]) -> Sequence[Tensor]:
    exchange.begin("gathering states")  # lets go of the blocks before the last one
    padded = torch.nn.functional.pad(mine, (0, width - mine.numel()))
    incoming = exchange.gather(padded, fixed=True, longest=0, what="a block of every rank's state")
    book(incoming.traffic)
    return [row.cpu() for row in incoming.wait()]


def _loaded(file: Path | io.BytesIO) -> Any:
    """Only what `weights_only` allows is unpickled."""
    return torch.load(file, map_location="cpu", weights_only=True)
