"""`thinwire bench lockfree`: what is measured, on little data."""

from __future__ import annotations

import io
import json
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

from thinwire.bench.lockfree import (
    APART,
    DENSE_D,
    ENTRIES,
    FACTORS,
    METHODS,
    SGD,
    SHAPES,
    SKLEARN,
    SPARSE_D,
    ReachRow,
    SpeedRow,
    ending,
    made_up,
    reach_table,
    sklearn_epochs,
    sklearn_loss,
    speed_table,
)
from thinwire.bench.timing import Timing
from thinwire.cli.main import main


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_have_the_shape_they_are_named_for(shape: str) -> None:
    data = made_up(shape, 300)
    assert data.dtype == np.float32
    assert set(data.targets) == {-1.0, 1.0}
    norms = np.linalg.norm(data.rows if data.dense else data.rows.toarray(), axis=1)
    assert np.allclose(norms, 1, atol=DENSE_D * np.finfo(np.float32).eps)
    if shape == "dense":
        assert data.d == DENSE_D
    else:
        assert data.d == SPARSE_D
        assert np.diff(data.rows.indptr).tolist() == [ENTRIES] * 300
        counts = np.bincount(data.rows.indices, minlength=SPARSE_D)
        assert (counts.max() > 100) == (shape == "skewed")  # of 300 rows, most have the most popular word


def test_every_method_has_its_row_on_every_number_of_threads(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "lockfree", "--samples", "60", "--repeats", "1", "--threads", "1,2"]
    assert main([*words, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert len(rows) == len(SHAPES) * (2 * len(METHODS) + 3)
    assert {(row["method"], row["threads"]) for row in rows if row["data"] == "skewed"} == {
        *((method, count) for method in (*METHODS, APART) for count in (1, 2)),
        (SKLEARN, 1),
    }
    assert all(row["per_second"] > 0 and row["speedup"] > 0 for row in rows)
    assert {row["written"] for row in rows if row["method"] == SGD and row["data"] != "dense"} == {ENTRIES}
    assert main([*words, "--shapes", "uniform"]) == 0
    assert SKLEARN in capsys.readouterr().out


def test_the_time_to_a_loss_is_measured_beside_scikit_learn(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["bench", "lockfree", "--dataset", "breast_cancer", "--repeats", "1", "--threads", "1"]
    assert main([*words, "--method", "memsgd(topk(count=3))", "--initial", "0.1", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["factor"] for row in rows] == [factor for factor in FACTORS for _ in range(3)]
    reached = [row for row in rows if row["seconds"] is not None]
    assert {row["method"] for row in reached} >= {SKLEARN}
    ours = [row for row in reached if row["method"] == "memsgd(topk(count=3))"]
    assert all(row["fewer"] == pytest.approx(10) for row in ours)  # three of thirty


def test_scikit_learn_solves_the_same_problem() -> None:
    data = made_up("dense", 200)
    model = sklearn_epochs(data, 3)()
    assert model.n_iter_ == 3
    assert sklearn_loss(data, 3) == data.objective(model.coef_[0], 1 / 200)
    loss, epochs = ending(data)
    assert loss == sklearn_loss(data, epochs) <= sklearn_loss(data, 1)


def test_the_tables_fit_120_columns() -> None:
    slow = Timing(1234.5, 1000.0, 2000.0)
    speed = SpeedRow("uniform", 50_000, 47_236, 70.0, "memsgd(randk(count=10))", 2, 10**7, slow, 70.0, 999.0)
    way = ReachRow("reuters", 19_043, 42_209, 1.001, 0.231468, SKLEARN, 2, 12.3456, 59.99, 52.8, 0.99)
    out = Console(file=io.StringIO(), width=300)
    out.print(speed_table([speed, replace(speed, written=None)]))
    out.print(reach_table([way, replace(way, seconds=None, epochs=None, fewer=None, over_sklearn=None)]))
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 120
    assert "never" in text


@pytest.mark.parametrize(
    "words",
    [["--threads", "0"], ["--shapes", "round"], ["--repeats", "0"], ["--samples", "0"]],
)
def test_a_mistake_is_explained(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "lockfree", *words]) == 2
    assert "must be at least 1 and shapes among uniform, skewed, dense" in capsys.readouterr().err


def test_units_that_are_not_known_are_refused_before_anything_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "lockfree", "--units", "size"]) == 2
    assert "--units is popularity or equal, got size" in capsys.readouterr().err
