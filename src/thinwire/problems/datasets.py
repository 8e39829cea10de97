"""Data sets by name: a LIBSVM file in the user's folder, a path, or scikit-learn's breast cancer data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from thinwire.errors import ConfigError, DataError
from thinwire.extras import require
from thinwire.problems.data_folder import VARIABLE, data_folder
from thinwire.problems.libsvm import read_rows

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
