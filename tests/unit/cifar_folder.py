"""A folder of CIFAR-10 with few images, in any of the forms that the reader knows."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from thinwire.training.tasks.cifar_files import TEST, TRAIN


def images_of(name: str, rows: int) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Random pixels around a mean that tells the class, so that a network can learn it."""
    random = np.random.default_rng([*name.encode()])
    labels = random.integers(0, 10, rows, dtype=np.uint8)
    noise = random.integers(0, 60, (rows, 3, 32, 32))
    return (noise + 19 * labels[:, None, None, None]).astype(np.uint8), labels


def write_cifar10(folder: Path, form: str = "python", rows: int = 20) -> Path:
    """Five training batches and a test batch of `rows` images each."""
    folder.mkdir(exist_ok=True)
    for name in (*TRAIN, *TEST):
        _WRITERS[form](folder / name, *images_of(name, rows))
    return folder


def _python(path: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    content = {b"data": images.reshape(len(labels), -1), b"labels": labels.tolist()}
    path.write_bytes(pickle.dumps(content, protocol=2))


def _binary(path: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    rows = np.concatenate([labels[:, None], images.reshape(len(labels), -1)], axis=1)
    path.with_suffix(".bin").write_bytes(rows.tobytes())


def _arrays(path: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    np.savez(path.with_suffix(".npz"), images=images, labels=labels)


def _coded(path: Path, images: NDArray[np.uint8], labels: NDArray[np.uint8]) -> None:
    coded = images.copy()
    coded[:, 0] -= images[:, 1]
    coded[:, 2] -= images[:, 1]
    for axis in (-2, -1):
        coded = np.diff(coded, axis=axis, prepend=np.uint8(0))
    np.savez_compressed(path.with_suffix(".npz"), coded=coded, labels=labels)


_WRITERS = {"python": _python, "binary": _binary, "arrays": _arrays, "coded": _coded}
FORMS = tuple(_WRITERS)
