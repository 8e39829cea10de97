"""The GPU back-end: Triton kernels on float32 (and on bytes); whatever else is left to the reference."""

from __future__ import annotations

FILES = (
    "correlate",
    "exponents",
    "precondition",
    "quantise",
    "select_random",
    "select_above",
    "select_largest",
    "variance",
    "wire",
)
"""Where the kernels are; each serves the operation whose name it has."""
