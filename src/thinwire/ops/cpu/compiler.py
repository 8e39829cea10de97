"""numba's compiler as the kernels use it: compiled code is kept on disk until the source of any kernel changes.

numba by itself looks at the one file that holds a function. But compiled code also holds the functions that it calls,
from other files: a change there would go unnoticed, in a test as in a new version of this package.
"""

from __future__ import annotations

from functools import cache, partial
from typing import Any

from numba import njit

from thinwire.version import PACKAGE, source_digest

FOLDERS = (PACKAGE / "ops" / "cpu", PACKAGE / "linear")
"""Where kernels are."""


def compiled(function: Any = None, **options: Any) -> Any:
    """A decorator: `njit` without the interpreter's lock, its results kept on disk; `options` are numba's."""
    if function is None:
        return partial(compiled, **options)
    kernel: Any = njit(nogil=True, cache=True, **options)(function)
    kept = kernel._cache
    own_key, own_load = kept._index_key, kept.load_overload
    kept._index_key = lambda *arguments: (*own_key(*arguments), *digests())
    kept.load_overload = lambda *arguments: _load(kept, own_load, arguments)
    return kernel


def _load(kept: Any, load: Any, arguments: Any) -> Any:
    """Compiled code from disk, or None. An index that names a module or a class which is gone is thrown away."""
    try:
        return load(*arguments)
    except (ImportError, AttributeError):
        kept.flush()
        return None


@cache
def digests() -> tuple[str, ...]:
    """Of all kernels' sources, found once."""
    return tuple(source_digest(folder) for folder in FOLDERS)
