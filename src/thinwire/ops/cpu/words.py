"""64 yes-or-no answers as one word, and words in bytes at any place: what numba's own loops do not become.

None of these checks bounds. Bit j of a word belongs to the number at start + j.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

LANES = 64
_compiled: Any = intrinsic  # the type of what a decorated function becomes is not the one that kernels call


@_compiled
def negative(typing: Any, x: Any, start: Any) -> Any:
    """Which of the 64 numbers from x[start] are below zero (-0 is not)."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = builder.load(_address(context, builder, signature, arguments))
        numbers.align = _width(numbers.type) // 8
        zeros = ir.Constant(numbers.type, [0.0] * LANES)
        return builder.bitcast(builder.fcmp_ordered("<", numbers, zeros), ir.IntType(LANES))

    return types.uint64(x, types.intp), emit


@_compiled
def nonzero(typing: Any, x: Any, start: Any) -> Any:
    """Which of the 64 bytes from x[start] are not zero."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = builder.load(_address(context, builder, signature, arguments))
        numbers.align = 1
        zeros = ir.Constant(numbers.type, [0] * LANES)
        return builder.bitcast(builder.icmp_unsigned("!=", numbers, zeros), ir.IntType(LANES))

    return types.uint64(x, types.intp), emit


@_compiled
def spread_(typing: Any, out: Any, start: Any, word: Any) -> Any:
    """The 64 bytes from out[start] become the bits of the word."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature, arguments)
        bits = builder.bitcast(arguments[2], ir.VectorType(ir.IntType(1), LANES))
        builder.store(builder.zext(bits, address.type.pointee), address, align=1)
        return context.get_dummy_value()

    return types.void(out, types.intp, types.uint64), emit


@_compiled
def add_signed_(typing: Any, out: Any, start: Any, word: Any, scale: Any) -> Any:
    """The 64 numbers from out[start] grow by scale, or shrink by it where the word has a bit."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature, arguments)
        numbers = builder.load(address)
        numbers.align = _width(numbers.type) // 8
        bits = builder.bitcast(arguments[2], ir.VectorType(ir.IntType(1), LANES))
        up = _splat(builder, arguments[3], numbers.type)
        down = _splat(builder, builder.fneg(arguments[3]), numbers.type)
        builder.store(builder.fadd(numbers, builder.select(bits, down, up)), address, align=numbers.align)
        return context.get_dummy_value()

    return types.void(out, types.intp, types.uint64, out.dtype), emit


@_compiled
def load_word(typing: Any, packed: Any, place: Any) -> Any:
    """The eight bytes from packed[place], lowest first."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.load(_address(context, builder, signature, arguments, ir.IntType(64)))
        word.align = 1
        return word

    return types.uint64(packed, types.intp), emit


@_compiled
def store_word_(typing: Any, packed: Any, place: Any, word: Any) -> Any:
    """The eight bytes from packed[place] become those of the word, lowest first."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.store(arguments[2], _address(context, builder, signature, arguments, ir.IntType(64)), align=1)
        return context.get_dummy_value()

    return types.void(packed, types.intp, types.uint64), emit


@_compiled
def ones(typing: Any, word: Any) -> Any:
    """How many bits of a word are set."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), emit


def _address(context: Any, builder: Any, signature: Any, arguments: Any, kind: Any = None) -> Any:
    """Where array[start] is, as a pointer to 64 lanes of the array's type or to the given type."""
    array_type = signature.args[0]
    array = context.make_array(array_type)(context, builder, arguments[0])
    lanes = ir.VectorType(context.get_value_type(array_type.dtype), LANES)
    return builder.bitcast(builder.gep(array.data, [arguments[1]]), (kind or lanes).as_pointer())


def _width(vector: Any) -> int:
    """The bits of one lane of floats."""
    return 32 if isinstance(vector.element, ir.FloatType) else 64


def _splat(builder: Any, value: Any, vector: Any) -> Any:
    """A vector whose lanes all hold the value."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), lanes)
