"""In what units the entries of a memory are compared: those of rare features in smaller ones.

With units u, what is large is decided by |p_j|/u_j in place of |p_j|: threshold(τ) writes where |p_j| ≥ η τ u_j, and
topk the k largest |p_j|/u_j. The steps work on features a_j/u_j and on v_j = u_j x_j, so a unit costs one
multiplication for each number that is written; and as units are powers of two, every number has the same bits as if it
had none.

Features lie in order of popularity, since a core's nearest cache holds whole lines, and 64 neighbours have one unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.errors import ConfigError
from thinwire.linear.steps.kernel import kernel
from thinwire.linear.steps.maxima import SHIFT

Array = NDArray[Any]
POPULARITY = "popularity"


@dataclass(frozen=True, eq=False)
class Units:
    """u, and where each feature lies."""

    places: Array
    """Where feature j lies."""
    blocks: Array
    """u of 64 neighbours each, powers of two."""

    @staticmethod
    def of(name: str, rows: Any) -> Units:
        """By popularity: u_j is about the cube root of the share of the rows that touch feature j.

        These units err least for as many writes. A feature in n_j rows moves by steps of one sign where it is rare;
        with a threshold τ_j it is written n_j/τ_j times, and errs by τ_j, on which the regulariser sets the same price
        for all. The least Σ τ_j² for a given Σ n_j/τ_j has τ_j ∝ n_j^⅓.
        """
        if name != POPULARITY:
            raise ConfigError(f'units are "{POPULARITY}", or None for equal ones, got {name!r}')
        if not hasattr(rows, "indices"):
            raise ConfigError("units by popularity are for sparse rows: a dense row touches every feature")
        counts, places = np.zeros(rows.shape[1], np.int64), np.empty(rows.shape[1], np.uint32)
        _count_(counts, rows.indices)
        _rank_(places, counts, np.zeros(rows.shape[0] + 1, np.int64))
        firsts = np.empty(len(counts))
        firsts[places] = np.maximum(counts, 1)
        shares = firsts[:: 1 << SHIFT] / rows.shape[0]
        return Units(places, np.exp2(np.rint(np.log2(shares) / 3)).astype(rows.dtype))

    def fit(self, rows: Any) -> bool:
        """Whether they are units of as many features, and of their type."""
        return bool(len(self.places) == rows.shape[1] and self.blocks.dtype == rows.dtype)

    @property
    def sizes(self) -> Array:
        """u_j."""
        sizes: Array = self.blocks[self.places >> SHIFT]
        return sizes

    def inside(self, x: Array) -> Array:
        """v = u x."""
        v: Array = np.empty_like(x)
        v[self.places] = x * self.sizes
        return v

    def outside(self, v: Array) -> Array:
        """x = v/u."""
        x: Array = v[self.places] / self.sizes
        return x

    def remembered(self, memory: Array) -> Array:
        """m, of which the steps keep m/u."""
        m: Array = memory[:, self.places] * self.sizes
        return m

    def arrange(self, columns: Array, values: Array) -> tuple[Array, Array]:
        """The entries of sparse rows, a/u, and where their columns lie."""
        out_columns, out_values = np.empty(len(columns), np.uint32), np.empty_like(values)
        _arrange_(out_columns, out_values, columns, values, self.places, 1 / self.blocks)
        return out_columns, out_values


@kernel
def _count_(counts: Any, columns: Any) -> None:  # pragma: no cover
    for j in columns:
        counts[j] += 1


@kernel
def _rank_(places: Any, counts: Any, firsts: Any) -> None:  # pragma: no cover
    """0, 1, … from the largest count down, of equal counts from the first on; `firsts` has room for all counts."""
    for count in counts:
        firsts[count] += 1
    place = 0
    for count in range(firsts.size - 1, -1, -1):
        place, firsts[count] = place + firsts[count], place
    for j in range(counts.size):
        places[j] = firsts[counts[j]]
        firsts[counts[j]] += 1


@kernel
def _arrange_(
    out_columns: Any, out_values: Any, columns: Any, values: Any, places: Any, per_unit: Any
) -> None:  # pragma: no cover
    for p in range(values.size):
        place = places[columns[p]]
        out_columns[p], out_values[p] = place, values[p] * per_unit[place >> SHIFT]
