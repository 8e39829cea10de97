"""CIFAR-10's files: the python version, the binary version, or .npz, found in a folder and checked."""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from thinwire.errors import DataError
from thinwire.problems.datasets import VARIABLE, data_folder

Images = NDArray[np.uint8]
Labels = NDArray[np.uint8]

TRAIN = tuple(f"data_batch_{number}" for number in range(1, 6))
TEST = ("test_batch",)
SHAPE = (3, 32, 32)
CLASSES = 10
FOLDERS = ("", "cifar-10-batches-py", "cifar-10-batches-bin", "cifar10", "cifar-10")
"""Where the files may lie in the folder that is given."""


def find_cifar10(data: str | None) -> Path:
    """The folder that holds the files: `data`, else the environment's THINWIRE_DATA, or a usual folder in it."""
    given = data_folder(data)
    places = [given / folder for folder in FOLDERS] if given else []
    for place in places:
        if any((place / f"{TRAIN[0]}{ending}").is_file() for ending in _READERS):
            return place
    searched = f"{given} and its folders {', '.join(FOLDERS[1:])}" if given else f"no folder: {VARIABLE} is not set"
    raise DataError(
        f"CIFAR-10 was not found: looked for {TRAIN[0]} (python version), {TRAIN[0]}.bin or {TRAIN[0]}.npz "
        f"in {searched}. "
        "Unpack cifar-10-python.tar.gz of https://www.cs.toronto.edu/~kriz/cifar.html and name its folder by --data "
        f"FOLDER or {VARIABLE}; `thinwire reproduce vgc --small` needs no such data"
    )


def read_cifar10(folder: Path, names: tuple[str, ...]) -> tuple[Images, Labels]:
    """The images (n, 3, 32, 32) and labels (n) of the named batches, one after the other."""
    parts = [_read(folder, name) for name in names]
    return np.concatenate([images for images, _ in parts]), np.concatenate([labels for _, labels in parts])


def _read(folder: Path, name: str) -> tuple[Images, Labels]:
    path = next((p for p in (folder / f"{name}{ending}" for ending in _READERS) if p.is_file()), None)
    if path is None:
        raise DataError(f"CIFAR-10 in {folder} is incomplete: {name} is missing; unpack the whole archive there")
    try:
        images, labels = _READERS[path.suffix](path)
        return _checked(np.asarray(images), np.asarray(labels), path)
    except DataError:
        raise
    except Exception as damage:  # a damaged pickle or zip can raise almost anything
        raise DataError(f"{path} is truncated or no file of CIFAR-10 ({damage}); fetch it again") from damage


def _checked(images: NDArray[Any], labels: NDArray[Any], path: Path) -> tuple[Images, Labels]:
    rows = len(labels)
    if rows == 0 or images.dtype != np.uint8 or images.size != rows * np.prod(SHAPE):
        raise DataError(
            f"{path} has {rows} labels and {images.size} numbers of type {images.dtype}; "
            f"CIFAR-10 has {np.prod(SHAPE)} bytes (3 × 32 × 32) to a label"
        )
    if labels.min() < 0 or labels.max() >= CLASSES:
        raise DataError(f"{path} has labels from {labels.min()} to {labels.max()}; CIFAR-10's are 0 to {CLASSES - 1}")
    return images.reshape(rows, *SHAPE), labels.astype(np.uint8)


def _python(path: Path) -> tuple[Any, Any]:
    """A pickled dictionary: data (n, 3072) and labels, as the python version has them."""
    content = _ArraysOnly(io.BytesIO(path.read_bytes()), encoding="bytes").load()
    return content[b"data"], content[b"labels"]


def _binary(path: Path) -> tuple[Any, Any]:
    """Rows of a label and 3072 pixels, one byte each."""
    rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 1 + int(np.prod(SHAPE)))
    return rows[:, 1:], rows[:, 0]


def _arrays(path: Path) -> tuple[Any, Any]:
    """`labels` with `images`, or with `coded`: differences modulo 256 along each row and column, red and blue as
    differences to green, which zip to little more than half."""
    with path.open("rb") as stream, np.load(stream) as content:
        labels = content["labels"]
        if "images" in content:
            return content["images"], labels
        coded = content["coded"]
    images = np.cumsum(np.cumsum(coded, axis=-1, dtype=np.uint8), axis=-2, dtype=np.uint8)
    images[:, 0] += images[:, 1]
    images[:, 2] += images[:, 1]
    return images, labels


class _ArraysOnly(pickle.Unpickler):
    """Builds numpy arrays and nothing else: a pickle could name any function to be called."""

    def find_class(self, module: str, name: str) -> Any:
        allowed = {"_reconstruct", "ndarray", "dtype"} if module.split(".")[0] == "numpy" else set()
        if name in allowed or (module, name) == ("_codecs", "encode"):
            return super().find_class(module.replace("numpy.core", "numpy._core"), name)
        raise pickle.UnpicklingError(f"it names {module}.{name}, which is no part of an array")


_READERS: dict[str, Callable[[Path], tuple[Any, Any]]] = {"": _python, ".bin": _binary, ".npz": _arrays}
"""By the ending of the file's name."""
