"""LIBSVM files: rows `label index:value …`, plain or compressed, read with the line number of any mistake."""

from __future__ import annotations

import bz2
import gzip
import lzma
import math
import zlib
from pathlib import Path
from typing import IO, Any

import numpy as np

from thinwire.errors import DataError
from thinwire.extras import require

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
