"""How the steps are compiled: without the interpreter's lock, and without counting references to arrays.

numba counts who holds an array by atomic additions to a number that all threads share, several in each step. The arrays
outlive the kernels, so nothing need be counted.
"""

from __future__ import annotations

from typing import Any

from numba import njit

_compile: Any = njit  # its types do not know of _nrt
kernel: Any = _compile(nogil=True, cache=True, error_model="numpy", _nrt=False)
inlined: Any = _compile(nogil=True, cache=True, error_model="numpy", _nrt=False, inline="always")
"""For functions of many arrays: each array is seven arguments, which a call would pass through memory in every step."""
