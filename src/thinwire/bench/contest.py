"""A contest: ours, plain torch and, where it is natural, numpy, for one operation on the same numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from thinwire import ops

Run = Callable[[Tensor], object]
"""One call; the vector it is given may be changed."""


@dataclass(frozen=True)
class Contest:
    """Those that do the same work."""

    ours: Run
    torch: Run
    numpy: Callable[[Any], object] | None = None
    """Given the vector as an array; only on a CPU."""


def by_reference(run: Run) -> Run:
    """The same call served by plain torch."""

    def plain(work: Tensor) -> object:
        with ops.backend("reference"):
            return run(work)

    return plain
