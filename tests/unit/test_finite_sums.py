"""Sums of many workers' functions: gradients against autograd, CSR against dense, splits, and what is refused."""

from __future__ import annotations

import bz2
import gzip
import lzma
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor
from torch.nn import functional

from thinwire import EF21, Identity, simulate
from thinwire.errors import ConfigError, DataError
from thinwire.problems import (
    OBJECTIVES,
    Dataset,
    FiniteSum,
    Shards,
    file_order,
    iid,
    label_skewed,
    least_squares_minimiser,
    load_dataset,
    objective,
    split_rows,
)
from thinwire.problems.datasets import read_libsvm, read_rows

EPS = float(np.finfo(np.float64).eps)
Vector = NDArray[np.float64]


def sample(rows: int = 37, d: int = 8, density: float = 0.4, seed: int = 0) -> Dataset:
    """Sparse rows (one of them and one column empty), and two classes."""
    random = np.random.default_rng(seed)
    dense = random.normal(size=(rows, d)) * (random.random((rows, d)) < density)
    dense[rows // 2], dense[:, d // 2] = 0.0, 0.0
    labels = np.where(np.arange(rows) % 3 == 0, 1.0, 2.0)
    return Dataset("sample", sparse.csr_matrix(dense), labels, "generated")


def dense_of(data: Dataset) -> Dataset:
    return Dataset(data.name, data.rows.toarray(), data.labels, data.source)


def close(one: Vector, other: Vector, terms: int) -> bool:
    """Equal up to the rounding of sums of that many terms."""
    scale = max(1.0, float(np.abs(other).max()))
    return one.shape == other.shape and float(np.abs(one - other).max()) <= 8 * EPS * terms * scale


# ------------------------------------------------------------------------------------------------- values and gradients


def by_autograd(name: str, data: Dataset, shards: Shards, x: Vector) -> tuple[Vector, Vector]:
    """Values and gradients of every worker, from the formulas as the paper prints them."""
    signs = torch.from_numpy(np.where(data.labels == data.labels.min(), -1.0, 1.0))
    rows = torch.from_numpy(data.rows.toarray())
    values, gradients = [], []
    for first, last in zip(shards.offsets[:-1], shards.offsets[1:], strict=True):
        point = torch.from_numpy(x).requires_grad_()
        own = torch.from_numpy(shards.order[first:last])
        value = PRINTED[name](rows[own] @ point, signs[own], point)
        value.backward()
        values.append(value.item())
        gradients.append(point.grad.numpy())  # type: ignore[union-attr]
    return np.array(values), np.array(gradients)


def nonconvex(z: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return functional.softplus(-y * z).mean() + 0.1 * (x**2 / (1 + x**2)).sum()


def l2(z: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return functional.softplus(-y * z).mean() + 0.05 * (x**2).sum()


def squares(z: Tensor, y: Tensor, x: Tensor) -> Tensor:
    return 0.5 * ((z - y) ** 2).mean()


PRINTED = {"logistic": nonconvex, "l2": l2, "least-squares": squares}


@pytest.mark.parametrize("storage", ["csr", "dense"])
@pytest.mark.parametrize("split", ["file", "iid", "skewed"])
@pytest.mark.parametrize("name", PRINTED)
def test_all_workers_gradients_are_those_of_autograd(name: str, split: str, storage: str) -> None:
    data = sample()
    shards = split_rows(split, data.labels, 5, seed=3)
    problem = objective(name, data if storage == "csr" else dense_of(data), shards)
    values, gradients = by_autograd(name, data, shards, problem.x0)
    x = {"x": torch.from_numpy(problem.x0)}
    assert close(problem.values(problem.x0), values, 37)
    assert close(problem.gradients(problem.x0), gradients, 37)
    assert close(problem.mean_gradient(problem.x0), gradients.mean(0), 37)
    assert close(np.array([problem.value(problem.x0), problem.loss(x)]), np.full(2, values.mean()), 37)
    assert all(close(problem.gradient(i, x, 0)["x"].numpy(), gradients[i], 37) for i in range(5))


@given(st.integers(1, 40), st.integers(1, 12), st.data())
def test_csr_equals_dense_for_any_number_of_workers_and_blocks(rows: int, d: int, draw: st.DataObject) -> None:
    workers = draw.draw(st.integers(1, rows))
    at_once = draw.draw(st.integers(1, workers + 1))
    data = sample(max(rows, 2), d, seed=rows)
    shards = iid(len(data), workers, seed=1)
    one, other = objective("least-squares", data, shards), objective("least-squares", dense_of(data), shards)
    assert close(one.gradients(one.x0), other.gradients(one.x0), rows * d)
    for problem in (one, other):
        blocks = list(problem.gradient_blocks(problem.x0, at_once))
        assert [first for first, _ in blocks] == list(range(0, workers, at_once))
        assert np.array_equal(np.concatenate([block for _, block in blocks]), problem.gradients(problem.x0))
    assert sparse.issparse(one.data_gradients(one.x0))
    assert isinstance(other.data_gradients(one.x0), np.ndarray)


def test_the_csr_gradients_hold_the_workers_own_coordinates_only() -> None:
    data = sample()
    problem = objective("logistic", data, file_order(37, 5))
    found = problem.data_gradients(problem.x0)
    for worker, (first, last) in enumerate(zip(problem.offsets[:-1], problem.offsets[1:], strict=True)):
        own = np.flatnonzero(np.abs(data.rows[first:last].toarray()).sum(0))
        assert found[worker].indices.tolist() == own.tolist()


def test_a_logistic_loss_far_from_zero_neither_overflows_nor_loses_its_slope() -> None:
    problem = objective("logistic", sample(), file_order(37, 2))
    far = 1e6 * problem.x0
    assert np.isfinite(problem.values(far)).all()
    assert np.isfinite(problem.gradients(far)).all()


def test_ten_thousand_workers_fit_in_memory_that_does_not_grow_with_n_times_d() -> None:
    """n = 10,000, d = 5,000: a dense n × d matrix would take 400 MB; 24 bytes a worker and 36 an entry suffice."""
    random = np.random.default_rng(0)
    n, d, each = 10_000, 5_000, 3
    columns = random.integers(0, d, size=(2 * n, each))
    pointers = np.arange(0, 2 * n * each + 1, each)
    rows = sparse.csr_matrix((random.normal(size=2 * n * each), columns.ravel(), pointers), shape=(2 * n, d))
    data = Dataset("wide", rows, np.where(random.random(2 * n) < 0.5, 0.0, 1.0), "generated")
    problem = objective("logistic", data, file_order(2 * n, n))
    others = 24 * n + 20 * 2 * n + 8 * d + 64  # 64: arrays that are one longer
    assert problem.nbytes <= 16 * rows.nnz + others
    tracemalloc.start()
    gradients = problem.data_gradients(problem.x0)
    blocks = sum(float(np.abs(block).sum()) for _, block in problem.gradient_blocks(problem.x0, at_once=100))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert gradients.shape == (n, d)
    assert problem.nbytes <= 36 * rows.nnz + others
    assert np.isfinite(blocks)
    assert peak < 8 * n * d / 10


@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_the_minimiser_of_least_squares_has_no_gradient(strength: float) -> None:
    problem = objective("least-squares", sample(), iid(37, 5), strength)
    best = least_squares_minimiser(problem)
    assert close(problem.mean_gradient(best), np.zeros(8), 37)
    assert problem.value(best) < problem.value(best + 1e-3)


@pytest.mark.parametrize("storage", ["csr", "dense"])
@pytest.mark.parametrize("strength", [0.0, 0.3])
def test_the_minimiser_of_wide_data_is_the_one_of_least_norm(strength: float, storage: str) -> None:
    """12 rows of 30 columns: by the Gram matrix of the rows, against the singular values of √W A."""
    data = sample(12, 30, density=0.9)
    problem = objective("least-squares", data if storage == "csr" else dense_of(data), iid(12, 5), strength)
    best = least_squares_minimiser(problem)
    assert close(problem.mean_gradient(best), np.zeros(30), 12 * 30)
    rows = problem.rows if storage == "dense" else problem.rows.toarray()
    U, s, V = np.linalg.svd(rows / np.sqrt(np.repeat(5 * problem.sizes, problem.sizes))[:, None], full_matrices=False)
    kept = s > 12 * EPS * s[0]
    inside = U.T @ (problem.targets / np.sqrt(np.repeat(5 * problem.sizes, problem.sizes)))
    by_svd = V[kept].T @ ((s / (s**2 + strength))[kept] * inside[kept])
    assert close(best, by_svd, int(30 * 12 * (s[0] / s[kept].min()) ** 2))


def test_simulate_runs_it_and_gradient_descent_descends() -> None:
    problem = objective("l2", sample(), file_order(37, 5))
    run = simulate(problem, EF21(Identity()), steps=20, step_size=1 / problem.smoothness().overall)
    assert all(after < before for before, after in zip(run.losses[:-1], run.losses[1:], strict=True))


def test_a_start_of_another_size_is_refused() -> None:
    problem = objective("l2", sample(), file_order(37, 5))
    with pytest.raises(ConfigError, match=r"x0 has shape \(3,\); this problem has 8 coordinates"):
        FiniteSum(problem.rows, problem.targets, problem.offsets, problem.sample_loss, problem.regulariser, np.zeros(3))


@pytest.mark.parametrize(
    ("change", "error", "problem"),
    [
        ({"offsets": np.array([0, 5, 5, 37])}, ConfigError, r"worker 1 \(of 3; 1 in all\) has no rows"),
        ({"offsets": np.array([0, 9, 5, 37])}, ConfigError, r"worker 1 \(of 3; 1 in all\) has no rows"),
        ({"offsets": np.array([0, 5, 36])}, ConfigError, r"offsets must run from 0 to 37, got \[ 0  5 36\]"),
        ({"offsets": np.array([0])}, ConfigError, "offsets must run from 0 to 37"),
        ({"targets": np.ones(36)}, ConfigError, "37 rows need 37 targets, got 36: one for each row"),
        ({"targets": np.arange(37.0) % 2}, DataError, "target 0 is 0, but the logistic loss takes −1 and .1"),
        ({"targets": np.full(37, np.nan)}, DataError, "target 0 is nan"),
    ],
)
def test_parts_that_do_not_fit_are_refused_at_construction(
    change: dict[str, Any], error: type[Exception], problem: str
) -> None:
    made = objective("logistic", sample(), file_order(37, 5))
    with pytest.raises(error, match=problem):
        replace(made, **change)


@pytest.mark.parametrize("storage", ["csr", "dense"])
def test_data_and_shards_that_do_not_fit_are_refused(storage: str) -> None:
    data = sample() if storage == "csr" else dense_of(sample())
    with pytest.raises(ConfigError, match="37 rows need 37 targets, got 36"):
        objective("logistic", replace(data, labels=data.labels[:36]), file_order(37, 5))
    with pytest.raises(ConfigError, match="the shards deal out row 39; the data have 37: split those"):
        objective("logistic", data, file_order(40, 5))


def test_squares_take_finite_targets() -> None:
    made = objective("least-squares", sample(), file_order(37, 5))
    with pytest.raises(DataError, match="target 36 is inf, but the squared loss takes finite numbers"):
        replace(made, targets=np.append(np.zeros(36), np.inf))


# ----------------------------------------------------------------------------------------------------------- smoothness


@pytest.mark.parametrize("storage", ["csr", "dense"])
@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_constants_are_those_of_brute_force(name: str, storage: str) -> None:
    data = sample()
    A = data.rows.toarray()
    curvature, added = {"logistic": (0.25, 0.2), "l2": (0.25, 0.1), "least-squares": (1.0, 0.0)}[name]
    problem = objective(name, data if storage == "csr" else dense_of(data), file_order(37, 5))
    known = problem.smoothness()
    parts = [A[first:last] for first, last in zip(problem.offsets[:-1], problem.offsets[1:], strict=True)]
    grams = [part.T @ part / len(part) for part in parts]
    top = [curvature * np.linalg.eigvalsh(gram)[-1] + added for gram in grams]
    tolerance = 64 * EPS * 37
    assert known.workers == pytest.approx(top, rel=tolerance)
    assert known.pooled == pytest.approx(curvature * np.linalg.eigvalsh(A.T @ A / 37)[-1] + added, rel=tolerance)
    averaged = np.linalg.eigvalsh(sum(grams) / 5)
    assert known.averaged == pytest.approx(curvature * averaged[-1] + added, rel=tolerance)
    assert known.averaged <= known.arithmetic_mean <= known.quadratic_mean <= max(top) * (1 + tolerance)
    assert known.samples == pytest.approx([curvature * np.square(p).sum(1).max() + added for p in parts], rel=tolerance)
    least = averaged[averaged > 37 * EPS * averaged[-1]][0]
    expected = {"logistic": None, "l2": 0.1, "least-squares": least}[name]
    assert known.mu == (None if expected is None else pytest.approx(expected, rel=tolerance * averaged[-1] / least))
    assert known.strongly_convex == (name == "l2")


@pytest.mark.parametrize("name", list(OBJECTIVES))
def test_no_two_gradients_differ_by_more_than_the_smoothness_says(name: str) -> None:
    problem = objective(name, sample(), file_order(37, 5))
    known, random = problem.smoothness(), np.random.default_rng(0)
    for _ in range(50):
        x, y = random.normal(size=(2, problem.d))
        moved = np.linalg.norm(problem.gradients(x) - problem.gradients(y), axis=1) / np.linalg.norm(x - y)
        assert np.all(moved <= known.workers * (1 + 64 * EPS * 37))


# --------------------------------------------------------------------------------------------------------------- splits


@given(st.integers(1, 200), st.data())
def test_every_split_deals_out_every_row_once_and_leaves_no_worker_empty(rows: int, draw: st.DataObject) -> None:
    workers = draw.draw(st.integers(1, rows))
    seed = draw.draw(st.integers(0, 2**32 - 1))
    labels = np.random.default_rng(seed).integers(0, draw.draw(st.integers(1, 4)), rows).astype(float)
    concentration = draw.draw(st.sampled_from([1e-3, 0.1, 1.0, 1e6]))
    drawn = (iid(rows, workers, seed), label_skewed(labels, workers, concentration, seed))
    for shards in (file_order(rows, workers), *drawn):
        assert len(shards) == workers
        assert sorted(shards.order.tolist()) == list(range(rows))
        assert shards.sizes.min() >= 1
    assert all(shards.sizes.max() - shards.sizes.min() <= 1 for shards in drawn)


def test_the_file_s_order_is_kept_and_a_seed_decides_the_others() -> None:
    labels = np.arange(40) % 2
    assert file_order(40, 3).order.tolist() == list(range(40))
    assert file_order(40, 3).sizes.tolist() == [13, 13, 14]
    for split in ("iid", "skewed"):
        one, same, other = (split_rows(split, labels, 3, seed=seed).order.tolist() for seed in (1, 1, 2))
        assert one == same != other


def test_a_small_concentration_separates_the_labels_and_a_large_one_does_not() -> None:
    labels = np.arange(4000) % 2
    spread = {}
    for concentration in (1e-2, 1e6):
        shards = label_skewed(labels, 20, concentration, seed=0)
        shares = np.array([labels[part].mean() for part in np.split(shards.order, shards.offsets[1:-1])])
        spread[concentration] = float(np.abs(shares - 0.5).mean())
    assert spread[1e-2] > 0.4
    assert spread[1e6] < 4 * np.sqrt(0.25 / 200)  # four deviations of a share among 200 rows


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: file_order(10, 11), "11 workers share 10 rows: some would have none; take at most 10 workers"),
        (lambda: iid(10, 0), "at least 1 worker, got 0"),
        (lambda: label_skewed(np.ones(4), 2, 0.0), "finite concentration above 0, got 0"),
        (lambda: label_skewed(np.ones(4), 2, float("inf")), "finite concentration above 0, got inf"),
        (lambda: split_rows("odd", np.ones(4), 2), "unknown split 'odd'; the splits are file, iid, skewed"),
        (lambda: Shards(np.arange(4), np.array([0, 2, 2, 4])), r"worker 1 \(of 3; 1 in all\) has no rows"),
        (lambda: Shards(np.array([0, 1, 1]), np.array([0, 3])), "a row belongs to two workers"),
        (lambda: Shards(np.arange(4), np.array([0, 3])), "offsets must run from 0 to 4"),
        (lambda: objective("ridge", sample(), file_order(37, 2)), "the problems are logistic, l2, least-squares"),
        (lambda: objective("l2", sample(), file_order(37, 2), -1.0), "strength must be .* at least 0, got -1"),
    ],
)
def test_what_cannot_be_split_or_built_is_refused(make: Callable[[], object], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        make()


# ------------------------------------------------------------------------------------------------------------ data sets


@pytest.mark.parametrize("inner", ["", "libsvm"])
@pytest.mark.parametrize(
    ("ending", "opener"),
    [("", open), (".txt", open), (".bz2", bz2.open), (".gz", gzip.open), (".xz", lzma.open), (".txt.xz", lzma.open)],
)
def test_a_data_set_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: str, opener: Callable[..., Any], inner: str
) -> None:
    (tmp_path / inner).mkdir(exist_ok=True)
    path = tmp_path / inner / f"tiny{ending}"
    with opener(path, "wb") as stream:
        stream.write(b"1 1:0.18257\n2 3:1\n1 2:0.1\n")
    for found in (load_dataset("tiny", str(tmp_path)), load_dataset(str(path))):
        assert found.rows.dtype == np.float64
        assert found.rows[0, 0] == 0.18257  # not rounded to float32 on the way
        assert found.labels.tolist() == [1, 2, 1]
    monkeypatch.setenv("THINWIRE_DATA", str(tmp_path))
    assert len(load_dataset("tiny")) == 3
    assert objective("logistic", load_dataset("tiny"), file_order(3, 1)).targets.tolist() == [-1, 1, -1]
    with pytest.raises(DataError, match=r"unknown data set 'tin': .* holds tiny\. Name a folder"):
        load_dataset("tin")


def test_without_any_data_breast_cancer_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THINWIRE_DATA", raising=False)
    data = load_dataset()
    assert data.rows.shape == (569, 30)
    with pytest.raises(DataError, match="known is breast_cancer, and THINWIRE_DATA is not set"):
        load_dataset("a9a")


def test_a_bad_line_is_told_by_its_number(tmp_path: Path) -> None:
    (tmp_path / "bad").write_text("1 1:1\n-1 2:x\n")
    with pytest.raises(DataError, match=r"bad, line 2: '2:x' is not a pair"):
        load_dataset("bad", str(tmp_path))


def test_a_value_that_overflows_float32_is_told_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "large"
    path.write_text("-1 1:1\n1 1:1e39\n")
    with pytest.raises(DataError, match=r"line 2: '1:1e39' is beyond 3.4e\+38, the largest number of type float32"):
        read_libsvm(path)
    assert read_rows(path)[0].max() == 1e39  # float64 holds it


def test_more_than_two_classes_are_for_least_squares_only(tmp_path: Path) -> None:
    (tmp_path / "three").write_text("1 1:1\n2 1:2\n3.5 1:2\n")
    data = load_dataset("three", str(tmp_path))
    for name in ("logistic", "l2"):
        with pytest.raises(
            DataError, match=r"data set 'three' has 3 classes \(1, 2, 3\.5\); logistic regression takes"
        ):
            objective(name, data, file_order(3, 1))
    assert objective("least-squares", data, file_order(3, 1)).targets.tolist() == [1, 2, 3.5]
