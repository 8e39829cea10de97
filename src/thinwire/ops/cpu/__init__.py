"""The CPU back-end: numba kernels on torch's memory, on as many threads as torch uses."""

from __future__ import annotations

FILES = (
    "bit_fields",
    "block_norms",
    "byte_codes",
    "csr_rows",
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
