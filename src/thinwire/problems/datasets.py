"""Data sets by name: a LIBSVM file in the user's folder, a path, or scikit-learn's breast cancer data.

LIBSVM files have rows `label index:value …`, plain or compressed; a mistake in one is told with its line number.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
import os
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from thinwire.errors import ConfigError, DataError
from thinwire.extras import require

VARIABLE = "THINWIRE_DATA"
"""The environment's name for the folder that holds a user's data."""
BREAST_CANCER = "breast_cancer"
"""The one that needs no file."""
FOLDERS = ("", "libsvm")
"""Where the files may lie in the folder that is given."""
ENDINGS = tuple(f"{text}{packed}" for text in ("", ".txt") for packed in ("", ".bz2", ".gz", ".xz"))


@dataclass(frozen=True, eq=False)
class Dataset:
    """Samples as float64 rows (scipy CSR or numpy) in the order of their file, and their labels as written."""

    name: str
    rows: Any
    labels: Any
    source: str

    def __len__(self) -> int:
        return len(self.labels)


def load_dataset(name: str = BREAST_CANCER, data: str | None = None) -> Dataset:
    """The data set `name`: breast_cancer, a LIBSVM file of that name in the folder `data`, or a path to one.

    `data` may be that file itself. Files may be plain or .bz2, .gz, .xz; without `data` the folder is that of the
    environment's THINWIRE_DATA. A data set read by its path is called as its file is, without folder and ending.
    """
    if name == BREAST_CANCER and not (data and Path(data).is_file()):
        return Dataset(name, *breast_cancer(), source="scikit-learn load_breast_cancer, features standardised")
    path = _find(name, data_folder(data))
    rows, labels = read_rows(path)
    return Dataset(stem(path), rows, labels, source=path.name)


def places(names: Iterable[str], data: str | None) -> dict[str, str | None]:
    """Each data set's name, and the `data` under which it is found: for a path its file, which the name does not tell.

    Records and pages are passed on, so that no path of the user's machine should be in them.
    """
    found: dict[str, str | None] = {}
    for name in names:
        short, place = (stem(Path(name)), name) if Path(name).is_file() else (name, data)
        if found.setdefault(short, place) != place:
            raise ConfigError(
                f"two data sets are called {short!r}: {found[short]} and {place}; rename one of the files"
            )
    return found


def breast_cancer() -> tuple[Any, Any]:
    """569 tumours with 30 features of mean 0 and variance 1; labels 0 (malignant) and 1."""
    bundle = require("sklearn.datasets", "tasks", "the breast cancer data").load_breast_cancer()
    return (bundle.data - bundle.data.mean(0)) / bundle.data.std(0), bundle.target.astype(np.float64)


def data_folder(given: str | None) -> Path | None:
    """`given`, else the folder of THINWIRE_DATA, else None."""
    folder = given or os.environ.get(VARIABLE)
    return Path(folder) if folder else None


def _find(name: str, folder: Path | None) -> Path:
    if folder is not None and folder.is_file():
        return _only(name, folder)
    candidates = [Path(name), *(place / f"{name}{ending}" for place in _places(folder) for ending in ENDINGS)]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    where = f"{folder} holds {', '.join(held(folder)) or 'no data files'}" if folder else f"{VARIABLE} is not set"
    raise DataError(
        f"unknown data set {name!r}: known is {BREAST_CANCER}, and {where}. Name a folder of LIBSVM files by --data "
        f"FOLDER or {VARIABLE} (a9a, a9a.bz2, a9a.gz or a9a.xz there is 'a9a'), or give the path of a file as the name"
    )


def _only(name: str, file: Path) -> Path:
    """The file that was given in a folder's place, if it is the one that is meant."""
    if name not in (stem(file), str(file)):
        raise DataError(
            f"--data names one file, {stem(file)}; it does not hold {name}: give the folder, or no --dataset"
        )
    return file


def held(folder: Path) -> list[str]:
    """The names of the data files in a folder."""
    files = (file for place in _places(folder) if place.is_dir() for file in place.iterdir() if file.is_file())
    return sorted({stem(file) for file in files if file.suffix != ".md"})


def _places(folder: Path | None) -> list[Path]:
    return [folder / inner for inner in FOLDERS] if folder else []


def stem(file: Path) -> str:
    """The name that a file is asked for by."""
    ending = next(end for end in reversed(ENDINGS) if file.name.endswith(end))  # the empty one comes last
    return file.name.removesuffix(ending)


# -------------------------------------------------------------------------------------------------------- LIBSVM files

_OPENERS: dict[str, Any] = {".bz2": bz2.open, ".gz": gzip.open, ".xz": lzma.open}
_DAMAGED = (EOFError, OSError, zlib.error, lzma.LZMAError)


def _open(path: Path) -> IO[bytes]:
    stream: IO[bytes] = _OPENERS.get(path.suffix, open)(path, "rb")
    return stream


def read_libsvm(path: Path) -> tuple[Any, Any]:
    """The rows (scipy CSR matrix, float32) and labels -1 and +1 of a two-class file; see `read_rows` and `signs`."""
    rows, labels = read_rows(path, np.float32)
    return rows, signs(labels, f"data file {path}").astype(np.float32)


def read_rows(path: Path, dtype: type[np.floating[Any]] = np.float64) -> tuple[Any, Any]:
    """The rows (scipy CSR matrix) and labels of a file as they are written.

    A file that is missing, damaged, empty or malformed is a `DataError`.
    """
    load = require("sklearn.datasets", "tasks", "reading LIBSVM files").load_svmlight_file
    if not path.is_file():
        raise DataError(f"data file {path} does not exist; give --data a LIBSVM file, plain or .bz2, .gz, .xz")
    try:
        with _open(path) as stream:
            rows, labels = load(stream, dtype=dtype)
    except _DAMAGED as damage:
        problem = f"data file {path} is truncated or not what its ending says: {damage}; fetch it again"
        raise DataError(problem) from damage
    except (ValueError, OverflowError) as mistake:
        _locate_mistake(path, dtype)
        raise DataError(f"data file {path} is not in LIBSVM format: {mistake}") from mistake
    if not (np.isfinite(rows.data).all() and np.isfinite(labels).all()):
        _locate_mistake(path, dtype)
        raise DataError(f"data file {path} holds a number that is not finite; give it finite ones")
    if len(labels) == 0:
        raise DataError(f"data file {path} holds no rows; a LIBSVM file has one row `label index:value …` a line")
    return rows, labels


def signs(labels: Any, source: str) -> Any:
    """The smaller of two labels as -1, the larger as +1; another number of classes is a `DataError`."""
    classes = np.unique(labels)
    if len(classes) != 2:
        shown = ", ".join(f"{label:g}" for label in classes[:6]) + (", …" if len(classes) > 6 else "")
        raise DataError(f"{source} has {len(classes)} classes ({shown}); logistic regression takes exactly 2")
    return np.where(labels == classes[0], -1.0, 1.0)


def _locate_mistake(path: Path, dtype: type[np.floating[Any]]) -> None:
    """Raise for the first malformed line, if there is one; scikit-learn's reader does not say which it was."""
    with _open(path) as stream:
        for number, line in enumerate(stream, start=1):
            problem = _problem(line.partition(b"#")[0].split(), dtype)
            if problem:
                raise DataError(f"data file {path}, line {number}: {problem}; a row reads `label index:value …`")


def _problem(words: list[bytes], dtype: type[np.floating[Any]]) -> str | None:
    """What is wrong with one row whose values are read as this type, or None."""
    if words and _number(words[0]) is None:
        return f"label {words[0].decode(errors='replace')!r} is not a finite number"
    previous = -1
    for word in words[1:]:
        shown = word.decode(errors="replace")
        index, colon, value = word.partition(b":")
        if index == b"qid":
            continue
        if _number(value) is not None and _number(value, dtype) is None:
            return f"{shown!r} is beyond {np.finfo(dtype).max:.3g}, the largest number of type {np.dtype(dtype)}"
        if not colon or not index.isdigit() or _number(value) is None:
            return f"{shown!r} is not a pair index:value of a whole number and a finite number"
        if int(index) <= previous:
            return f"index {int(index)} does not exceed the index {previous} before it"
        previous = int(index)
    return None


def _number(text: bytes, dtype: type[np.floating[Any]] = np.float64) -> float | None:
    """The number, where it is finite in this type."""
    try:
        with np.errstate(over="ignore"):
            value = float(dtype(float(text)))
    except ValueError:
        return None
    return value if math.isfinite(value) else None
