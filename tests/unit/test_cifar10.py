"""CIFAR-10: its files in every form, what is wrong with bad ones, and the VGG-like network."""

from __future__ import annotations

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.unit.cifar_folder import FORMS, images_of, write_cifar10
from torch import nn

from thinwire.errors import DataError
from thinwire.training.tasks import load_task
from thinwire.training.tasks.cifar10 import vgg
from thinwire.training.tasks.cifar_files import FOLDERS, TEST, TRAIN, find_cifar10, read_cifar10


@pytest.fixture(autouse=True)
def _no_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("THINWIRE_DATA", raising=False)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read_alike(form: str, tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path / "cifar", form)
    images, labels = read_cifar10(folder, TRAIN)
    expected = [images_of(name, 20) for name in TRAIN]
    assert np.array_equal(images, np.concatenate([images for images, _ in expected]))
    assert np.array_equal(labels, np.concatenate([labels for _, labels in expected]))
    assert read_cifar10(folder, TEST)[0].shape == (20, 3, 32, 32)


@pytest.mark.parametrize("inner", FOLDERS)
def test_the_folder_or_a_usual_one_in_it_is_found(inner: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_cifar10(tmp_path / inner, "binary")
    assert find_cifar10(str(tmp_path)) == folder
    monkeypatch.setenv("THINWIRE_DATA", str(tmp_path))
    assert find_cifar10(None) == folder


def test_without_data_the_error_says_what_is_looked_for_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data_batch_1 .*THINWIRE_DATA is not set.*cs\.toronto\.edu.*--small"):
        find_cifar10(None)
    with pytest.raises(DataError, match="cifar-10-batches-py"):
        find_cifar10(str(tmp_path))


def test_a_missing_batch_is_named(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path, "binary")
    (folder / "data_batch_4.bin").unlink()
    with pytest.raises(DataError, match="incomplete: data_batch_4 is missing"):
        load_task("cifar10", str(folder))


@pytest.mark.parametrize("form", FORMS)
def test_a_truncated_file_is_refused(form: str, tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path, form)
    damaged = next(folder.glob("data_batch_2*"))
    damaged.write_bytes(damaged.read_bytes()[:-700])
    with pytest.raises(DataError, match=r"data_batch_2.*fetch it again"):
        read_cifar10(folder, TRAIN)


def test_labels_beyond_the_classes_and_too_few_pixels_are_refused(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path, "arrays")
    images, labels = images_of("data_batch_1", 20)
    np.savez(folder / "data_batch_1.npz", images=images, labels=labels + 10)
    with pytest.raises(DataError, match=r"labels from 1.* to 1.*; CIFAR-10's are 0 to 9"):
        read_cifar10(folder, TRAIN)
    np.savez(folder / "data_batch_1.npz", images=images[:-1], labels=labels)
    with pytest.raises(DataError, match="3072 bytes"):
        read_cifar10(folder, TRAIN)


class _Malicious:
    def __reduce__(self) -> tuple[object, tuple[str, str]]:
        return os.putenv, ("THINWIRE_TEST_CALLED", "1")


def test_a_pickle_can_build_arrays_and_nothing_else(tmp_path: Path) -> None:
    folder = write_cifar10(tmp_path)
    (folder / "data_batch_1").write_bytes(pickle.dumps({b"data": _Malicious(), b"labels": []}))
    with pytest.raises(DataError, match="no part of an array"):
        read_cifar10(folder, TRAIN)


def test_the_network_is_the_one_of_chainers_example() -> None:
    network = vgg()
    assert sum(parameter.numel() for parameter in network.parameters()) == 14_987_200
    convolutions = [module for module in network if isinstance(module, nn.Conv2d)]
    assert [conv.out_channels for conv in convolutions] == [64] * 2 + [128] * 2 + [256] * 3 + [512] * 6
    assert [module.p for module in network if isinstance(module, nn.Dropout)] == [0.3] + [0.4] * 7 + [0.5] * 2
    assert network.eval()(torch.zeros(2, 3, 32, 32)).shape == (2, 10)


def test_evaluation_normalises_with_running_statistics_and_leaves_the_mode(tmp_path: Path) -> None:
    task = load_task("cifar10", str(write_cifar10(tmp_path)))
    model = task.model(0)
    values = task.evaluate(model)
    assert model.training
    assert values == task.evaluate(model)
    with torch.no_grad():
        expected = nn.functional.cross_entropy(model.eval()(task.test[0] / 255), task.test[1])
    assert values["loss"] == pytest.approx(float(expected), rel=1e-5)
