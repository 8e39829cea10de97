"""Comparisons of 64 numbers at once, as one word of 64 bits: what numba's own loops do not become.

A loop that asks every number of a block whether it is large misleads the branch predictor at every find; one comparison
of the whole block and a walk along the set bits does so once for each block that holds any.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 64


@intrinsic  # type: ignore[untyped-decorator]
def at_least(typing: Any, bits: Any, start: Any, mask: Any, level: Any) -> Any:
    """Of the LANES integers from bits[start]: those with (bits & mask) >= level, lowest bit first. No bounds check."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array_type = signature.args[0]
        array = context.make_array(array_type)(context, builder, arguments[0])
        word = context.get_value_type(array_type.dtype)
        address = builder.gep(array.data, [arguments[1]])
        vector = ir.VectorType(word, LANES)
        numbers = builder.load(builder.bitcast(address, vector.as_pointer()))
        numbers.align = word.width // 8
        masked = builder.and_(numbers, _splat(builder, arguments[2], vector))
        found = builder.icmp_signed(">=", masked, _splat(builder, arguments[3], vector))
        return builder.bitcast(found, ir.IntType(LANES))

    if not (isinstance(bits, types.Array) and isinstance(bits.dtype, types.Integer)):
        return None
    return types.uint64(bits, types.intp, bits.dtype, bits.dtype), emit


def _splat(builder: Any, value: Any, vector: Any) -> Any:
    """A vector whose lanes all hold the value."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), lanes)


@intrinsic  # type: ignore[untyped-decorator]
def lowest(typing: Any, word: Any) -> Any:
    """The place of the lowest set bit of a word that is not zero."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], cgutils.true_bit)

    return types.int64(types.uint64), emit
