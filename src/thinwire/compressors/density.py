"""How many numbers a sparsifier keeps: a share of each piece, or a count."""

from __future__ import annotations

from decimal import Decimal
from functools import lru_cache

from thinwire.checks import is_number
from thinwire.compressors.base import check
from thinwire.layout import Layout
from thinwire.warmup import Number, bounds, is_moving


def check_density(name: str, ratio: Number | None, count: float | None, least_count: float) -> None:
    """Exactly one of ratio in (0, 1] and count >= least_count must be given."""
    check(
        (ratio is None) != (count is None),
        f"{name} takes either a ratio or count=, got ratio={ratio} and count={count}",
    )
    if ratio is not None:
        check(is_moving(ratio), f"{name} ratio must be a number or warmup(...), got {ratio!r}")
        low, high = bounds(ratio)
        check(0 < low and high <= 1, f"{name} ratio must lie in (0, 1], got {ratio}: write 1 % as {name}(0.01)")
    if count is not None:
        check(is_number(count), f"{name} count must be a number, got {count!r}")
        bound = f"at least {least_count}" if least_count else "positive"
        check(count >= least_count and count > 0, f"{name} count must be {bound}, got {count}")


@lru_cache(maxsize=1024)
def kept_of(layout: Layout, ratio: float | None, count: float | None) -> tuple[int, ...]:
    """k of each piece."""
    return tuple(kept(piece.numel, ratio, count) for piece in layout.pieces)


@lru_cache(maxsize=4096)
def kept(numel: int, ratio: float | None, count: float | None) -> int:
    """k of a piece: floor(ratio * numel), at least one, read from the ratio as it is written (0.29 of 100 is 29)."""
    if numel == 0:
        return 0
    k = int(count) if count is not None else int(Decimal(repr(float(ratio or 0))) * numel)
    return min(numel, max(1, k))
