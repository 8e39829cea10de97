"""Tasks: their seeds decide everything, and bad data files are told with their line."""

from __future__ import annotations

import bz2
import gzip
import lzma
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.cifar_folder import write_cifar10

from thinwire.errors import BackendError, ConfigError, DataError
from thinwire.extras import require
from thinwire.problems.datasets import read_libsvm
from thinwire.training.tasks import TASKS, Task, load_task
from thinwire.training.tasks.logistic import Logistic
from thinwire.training.tasks.sampling import epoch_slice, split

ROWS = "".join(f"{1 if row % 3 else -1} 1:{row} 3:{row / 2}\n" for row in range(30))


@pytest.fixture(scope="module", params=list(TASKS))
def task(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Task:
    folder = write_cifar10(tmp_path_factory.mktemp("cifar")) if request.param == "cifar10" else None
    return load_task(request.param, folder and str(folder))


def test_a_seed_decides_the_model_and_the_generator_is_left_alone(task: Task) -> None:
    before = torch.random.get_rng_state()
    first, second = task.model(3).state_dict(), task.model(3).state_dict()
    assert torch.equal(before, torch.random.get_rng_state())
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_a_batch_is_a_function_of_seed_step_and_worker(task: Task) -> None:
    one, same = task.batch(0, 5, 1, 4, 8), task.batch(0, 5, 1, 4, 8)
    assert all(torch.equal(a, b) for a, b in zip(one, same, strict=True))
    assert len(one[0]) == 8
    others = [task.batch(1, 5, 1, 4, 8), task.batch(0, 6, 1, 4, 8), task.batch(0, 5, 2, 4, 8)]
    assert not any(torch.equal(one[0], other[0]) for other in others)


def test_a_few_steps_lower_the_loss_and_the_metric_is_evaluated(task: Task) -> None:
    model = task.model(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    batch = task.batch(0, 0, 0, 1, 16)
    first = task.loss(model, batch).detach()
    for _ in range(10):
        optimizer.zero_grad()
        loss = task.loss(model, batch)
        loss.backward()
        optimizer.step()
    assert task.loss(model, batch).detach() < first
    assert task.metric in task.evaluate(model)
    assert task.facts()


def test_workers_together_see_every_sample_once_an_epoch() -> None:
    seen = [epoch_slice(24, 0, step, worker, 4, 2) for step in range(3) for worker in range(4)]
    assert sorted(np.concatenate(seen).tolist()) == list(range(24))


def test_the_split_is_fixed_and_complete() -> None:
    train, test = split(100, 0.2)
    assert len(test) == 20
    assert sorted([*train.tolist(), *test.tolist()]) == list(range(100))
    assert split(100, 0.2)[1].tolist() == test.tolist()


def test_an_unknown_task_and_data_for_a_task_without_file_are_refused() -> None:
    with pytest.raises(ConfigError, match="unknown task 'digit'; the tasks are cifar10, digits, logistic, text"):
        load_task("digit")
    with pytest.raises(ConfigError, match=r"these read some: 'cifar10' .* and 'logistic'"):
        load_task("digits", "rows.txt")


def test_a_missing_package_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.delitem(sys.modules, "sklearn.datasets", raising=False)
    with pytest.raises(BackendError, match=r"pip install 'thinwire\[tasks\]'"):
        load_task("digits")


def test_a_broken_package_is_not_called_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "half_installed.py").write_text("import surely_not_there")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="surely_not_there"):
        require("half_installed", "tasks", "a test")


# --------------------------------------------------------------------------------------------------------------- LIBSVM


@pytest.mark.parametrize(("ending", "opener"), [("", open), (".bz2", bz2.open), (".gz", gzip.open), (".xz", lzma.open)])
def test_a_libsvm_file_is_read_plain_or_compressed(tmp_path: Path, ending: str, opener: object) -> None:
    path = tmp_path / f"rows.txt{ending}"
    with opener(path, "wb") as stream:  # type: ignore[operator]
        stream.write(ROWS.encode())
    rows, labels = read_libsvm(path)
    assert rows.shape == (30, 3)
    assert sorted(set(labels.tolist())) == [-1.0, 1.0]
    assert labels[0] == -1.0
    assert Logistic.load(str(path)).facts()["features"] == 3


def test_the_smaller_label_becomes_minus_one(tmp_path: Path) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("2 1:1\n1 1:2\n")
    assert read_libsvm(path)[1].tolist() == [1.0, -1.0]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("yes 1:2", "label 'yes' is not a finite number"),
        ("nan 1:2", "label 'nan' is not a finite number"),
        ("1 3", "'3' is not a pair index:value"),
        ("1 a:2", "'a:2' is not a pair index:value"),
        ("1 1:x", "'1:x' is not a pair index:value"),
        ("1 1:inf", "'1:inf' is not a pair index:value"),
        ("1 -3:1", "'-3:1' is not a pair index:value"),
        ("1 4:1 2:1", "index 2 does not exceed the index 4 before it"),
    ],
)
def test_a_malformed_line_is_told_with_its_number(tmp_path: Path, line: str, problem: str) -> None:
    path = tmp_path / "rows.txt"
    path.write_text("# a comment\n1 1:2\n\n" + line + "\n-1 1:3\n")
    with pytest.raises(DataError) as caught:
        read_libsvm(path)
    assert f"line 4: {problem}" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "holds no rows"),
        ("1 1:1\n1 1:2\n", r"has 1 classes \(1\); logistic regression takes exactly 2"),
        ("1 1:1\n2 1:2\n3 1:2\n", r"has 3 classes \(1, 2, 3\)"),
    ],
)
def test_a_file_without_two_classes_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    path = tmp_path / "rows.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=problem):
        read_libsvm(path)


def test_missing_truncated_and_short_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"does not exist"):
        read_libsvm(tmp_path / "nothing.txt")
    for name, pack in (("a.gz", gzip.compress), ("a.bz2", bz2.compress), ("a.xz", lzma.compress)):
        (tmp_path / name).write_bytes(pack(ROWS.encode())[:-12])
        with pytest.raises(DataError, match="truncated"):
            read_libsvm(tmp_path / name)
    (tmp_path / "plain.gz").write_text(ROWS)
    with pytest.raises(DataError, match="not what its ending says"):
        read_libsvm(tmp_path / "plain.gz")
    (tmp_path / "short.txt").write_text("1 1:2\n-1 1:3\n")
    with pytest.raises(DataError, match="has 2 rows; training and test need at least 10"):
        Logistic.load(str(tmp_path / "short.txt"))
