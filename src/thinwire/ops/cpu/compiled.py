"""numba's compiler as the kernels use it: what it made is kept on disk until the source of any kernel changes.

numba by itself looks at the one file that holds a function. But compiled code also holds the functions that it calls,
from other files: a change there would go unnoticed, in a test as in a new version of this package.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache, partial
from hashlib import sha256
from pathlib import Path
from typing import Any

from numba import njit

PACKAGE = Path(__file__).parents[2]
FOLDERS = (PACKAGE / "ops" / "cpu", PACKAGE / "engines" / "lockfree")
"""Where kernels are."""


def compiled(function: Any = None, **options: Any) -> Any:
    """A decorator: `njit` without the interpreter's lock, its results kept on disk; `options` are numba's."""
    if function is None:
        return partial(compiled, **options)
    kernel: Any = njit(nogil=True, cache=True, **options)(function)
    own_key = kernel._cache._index_key
    kernel._cache._index_key = lambda *arguments: (*own_key(*arguments), digest(FOLDERS))
    return kernel


@cache
def digest(folders: Sequence[Path]) -> str:
    """Of all Python files in these folders."""
    found = sha256()
    for path in sorted(path for folder in folders for path in folder.glob("*.py")):
        found.update(path.read_bytes())
    return found.hexdigest()
