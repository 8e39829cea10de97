"""How the steps are compiled, and the instructions that numba lacks: atomic additions and prefetching.

Steps run without the interpreter's lock, and without counting references to arrays: numba counts who holds an array by
atomic additions to a number that all threads share, several in each step. The arrays outlive the kernels, so nothing
need be counted.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import extending, types
from numba.core import cgutils

from thinwire.ops.cpu.compiler import compiled

kernel: Any = compiled(error_model="numpy", _nrt=False)
inlined: Any = compiled(error_model="numpy", _nrt=False, inline="always")
"""For functions of many arrays: each array is seven arguments, which a call would pass through memory in every step."""
intrinsic: Any = extending.intrinsic
"""By its own type, callers would have to pass the compiler's first argument."""


@kernel
def below(bits: Any, count: int) -> int:  # pragma: no cover
    """64 random bits as a number in [0, count)."""
    return int((np.uint64(bits) >> np.uint64(11)) * 2.0**-53 * count)


# ----------------------------------------------------------------------------------------------------------- atomically
#
# Adding to a number that other threads add to as well: nothing is lost, and nobody waits. LLVM's `atomicrmw`; x86 has
# no such instruction for floats, and it becomes a loop around compare-and-exchange.


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


# ---------------------------------------------------------------------------------------------------------- in advance
#
# Asking for memory before it is needed: rows are visited in random order, which no hardware foresees.

ENTRIES = 16
"""Numbers of four bytes in what comes together; of eight, two lines, which come one after the other."""
_declare: Any = cgutils.get_or_insert_function


@intrinsic
def ask(typing: Any, x: Any, place: Any) -> Any:
    """Fetch the cache line of x[place]; nothing happens where there is no such memory."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        data = context.make_array(signature.args[0])(context, builder, arguments[0]).data
        address = builder.bitcast(builder.gep(data, [arguments[1]]), ir.IntType(8).as_pointer())
        word = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [address.type, word, word, word])
        prefetch = _declare(builder.module, kind, "llvm.prefetch.p0")
        builder.call(prefetch, [address, *(ir.Constant(word, n) for n in (0, 3, 1))])  # to read, keep close, data
        return context.get_dummy_value()

    return types.void(x, types.intp), emit


@inlined
def ask_for(x: Any, first: int, last: int) -> None:  # pragma: no cover
    """Fetch x[first:last]."""
    for place in range(first, last, ENTRIES):
        ask(x, place)
