"""Asking for memory before it is needed: rows are visited in random order, which no hardware foresees."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from thinwire.linear.kernel import inlined

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


_ask: Any = ask  # numba's types would have their callers pass the compiler's own first argument


@inlined
def ask_for(x: Any, first: int, last: int) -> None:  # pragma: no cover
    """Fetch x[first:last]."""
    for place in range(first, last, ENTRIES):
        _ask(x, place)
