"""The samples of a linear model: rows (CSR or dense), targets and weights, checked once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from thinwire.errors import ConfigError, DataError
from thinwire.linear.losses import Loss, weighted_sum
from thinwire.linear.units import Units

Vector = NDArray[np.float64]


class CSR(NamedTuple):
    """Sparse rows, as the compiled steps read them; no column twice in a row.

    Columns are unsigned: numba then leaves out the code for indices that count from the end."""

    pointers: Any
    columns: Any
    values: Any


@dataclass(frozen=True, eq=False)
class Samples:
    """n rows a_i of d features (scipy CSR or numpy; float32 or float64, else taken as float64), targets y_i, weights.

    f(x) = (1/n) Σ w_i ℓ(⟨a_i, x⟩ + b, y_i) + (λ/2)‖x‖²

    `units` say how features are compared where a step chooses among them (see `units`); f is the same with any.
    """

    rows: Any
    targets: Vector
    weights: Vector
    loss: Loss
    units: Units | None = None

    @staticmethod
    def of(
        rows: Any, targets: Any, *, loss: str | Loss = Loss.LOGISTIC, weights: Any = None, units: str | None = None
    ) -> Samples:
        """Refuses wrong shapes, numbers that are not finite, negative weights, and labels other than ±1.

        `units`: None for equal ones, or "popularity", for sparse rows.
        """
        loss, rows = Loss.of(loss), _rows(rows)
        n = rows.shape[0]
        y = _targets(targets, n, loss)
        w = np.ones(n) if weights is None else _vector(weights, n, "weights")
        if (w < 0).any():
            raise DataError(f"weights must be at least 0, got {w.min():g}")
        return Samples(rows, y, w, loss, None if units is None else Units.of(units, rows))

    def relabelled(self, targets: Any) -> Samples:
        """The same rows and weights with other targets; what was compiled of the rows is shared."""
        other = replace(self, targets=_targets(targets, len(self), self.loss))
        other.__dict__["compiled"] = self.compiled
        return other

    def in_units(self, units: str | Units | None) -> Samples:
        """The same samples in other units: by name, or those of other samples of the same features and type."""
        if units is None or isinstance(units, str):
            return replace(self, units=None if units is None else Units.of(units, self.rows))
        if not (isinstance(units, Units) and not self.dense and units.fit(self.rows)):
            raise ConfigError(
                f'units are "popularity", None, or those of {self.d} sparse {self.dtype} features, got {units!r}'
            )
        return replace(self, units=units)

    def first(self) -> Samples:
        """The first sample by itself, in memory of its own."""
        rows, targets, weights = (each[:1].copy() for each in (self.rows, self.targets, self.weights))
        return replace(self, rows=rows, targets=targets, weights=weights)

    def __len__(self) -> int:
        return int(self.rows.shape[0])

    @property
    def d(self) -> int:
        return int(self.rows.shape[1])

    @property
    def dtype(self) -> Any:
        return self.rows.dtype

    @property
    def dense(self) -> bool:
        return isinstance(self.rows, np.ndarray)

    @cached_property
    def compiled(self) -> Any:
        """The rows as the compiled steps read them, in their units."""
        if self.dense:
            return self.rows
        columns, values = self.rows.indices, self.rows.data
        if self.units is not None:
            columns, values = self.units.arrange(columns, values)
        return CSR(self.rows.indptr.astype(np.int64), columns.astype(np.uint32, copy=False), values)

    def mean_loss(self, x: Any, intercept: float = 0.0) -> float:
        """(1/n) Σ w_i ℓ(⟨a_i, x⟩ + b, y_i)."""
        predictions = self.rows @ x.astype(self.dtype, copy=False) + intercept
        return float(weighted_sum(int(self.loss), predictions, self.targets, self.weights)) / len(self)

    def objective(self, x: Any, strength: float, intercept: float = 0.0) -> float:
        """f(x), with λ = strength."""
        square = float(np.square(x, dtype=np.float64).sum())
        return self.mean_loss(x, intercept) + 0.5 * strength * square


def _rows(rows: Any) -> Any:
    sparse = hasattr(rows, "tocsr")
    rows = rows.tocsr() if sparse else np.asarray(rows)
    if rows.ndim != 2 or 0 in rows.shape:
        raise DataError(f"rows must be a matrix of at least one sample and one feature, got shape {rows.shape}")
    if rows.shape[1] >= 1 << 31:
        raise DataError(f"columns are counted in 31 bits, got {rows.shape[1]} features: hash them to fewer")
    dtype = rows.dtype if rows.dtype in (np.float32, np.float64) else np.float64
    if sparse:
        rows = rows.astype(dtype, copy=False)
        if not rows.has_canonical_format:
            rows = rows.copy()
            rows.sum_duplicates()
    else:
        rows = np.ascontiguousarray(rows, dtype)
    values = rows.data if sparse else rows
    if not np.isfinite(values).all():
        raise DataError("rows hold NaN or infinity: impute or drop those samples first")
    return rows


def _targets(numbers: Any, n: int, loss: Loss) -> Vector:
    y = _vector(numbers, n, "targets")
    if loss.of_classes and not (np.abs(y) == 1).all():
        strange = y[np.abs(y) != 1][0]
        raise DataError(f"{loss.name.lower()} loss takes labels -1 and +1, got {strange:g}: map the classes to them")
    return y


def _vector(numbers: Any, n: int, name: str) -> Vector:
    vector: Vector = np.ascontiguousarray(numbers, np.float64)
    if vector.shape != (n,):
        raise ConfigError(f"{name} have shape {vector.shape}; {n} rows take a vector of {n}")
    if not np.isfinite(vector).all():
        raise DataError(f"{name} hold NaN or infinity: drop those samples first")
    return vector
