"""Adding to a number that other threads add to as well: nothing is lost, and nobody waits.

LLVM's `atomicrmw`; for floats x86 has no such instruction, and it becomes a loop around compare-and-exchange.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic
def add_float_(typing: Any, x: Any, place: Any, value: Any) -> Any:
    """x[place] += value. No bounds check."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.atomic_rmw("fadd", address, arguments[2], "monotonic")
        return context.get_dummy_value()

    return types.void(x, types.intp, x.dtype), emit


@intrinsic
def fetch_add_(typing: Any, x: Any, place: Any, value: Any) -> Any:
    """x[place] += value of integers; what stood there before. No bounds check."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.atomic_rmw("add", address, arguments[2], "seq_cst")

    return x.dtype(x, types.intp, x.dtype), emit


@intrinsic
def read(typing: Any, x: Any, place: Any) -> Any:
    """x[place], an integer of 64 bits; what its writer wrote before it is seen too. No bounds check."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        return builder.load_atomic(address, "acquire", 8)

    return x.dtype(x, types.intp), emit


@intrinsic
def write_(typing: Any, x: Any, place: Any, value: Any) -> Any:
    """x[place] = value, an integer of 64 bits, after all that was written before. No bounds check."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1])
        builder.store_atomic(arguments[2], address, "release", 8)
        return context.get_dummy_value()

    return types.void(x, types.intp, x.dtype), emit


def _address(context: Any, builder: Any, array_type: Any, array: Any, place: Any) -> Any:
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [place])
