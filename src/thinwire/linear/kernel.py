"""How the steps are compiled: without the interpreter's lock, and without counting references to arrays.

numba counts who holds an array by atomic additions to a number that all threads share, several in each step. The arrays
outlive the kernels, so nothing need be counted.
"""

from __future__ import annotations

from typing import Any

from thinwire.ops.cpu.compiled import compiled

kernel: Any = compiled(error_model="numpy", _nrt=False)
inlined: Any = compiled(error_model="numpy", _nrt=False, inline="always")
"""For functions of many arrays: each array is seven arguments, which a call would pass through memory in every step."""
