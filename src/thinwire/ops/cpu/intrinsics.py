"""LLVM instructions on 64 numbers at once, and on words of 64 bits, for which numba compiles no loop.

A loop that asks every number of a block whether it is large misleads the branch predictor at every find; one comparison
of the whole block and a walk along the set bits does so once for each block that holds any. Bit j of such a word
belongs to the number at start + j. None of these functions checks bounds.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

LANES = 64
_intrinsic: Any = intrinsic  # numba's own type would have callers pass the compiler's first argument


@_intrinsic
def at_least(typing: Any, x: Any, start: Any, mask: Any, level: Any) -> Any:
    """Of the LANES floats from x[start]: those whose bits & mask >= level, lowest bit first."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = _load(context, builder, signature.args[0], arguments[0], arguments[1])
        return _compare(builder, numbers, arguments[2], arguments[3])

    return types.uint64(x, types.intp, mask, mask), emit


@_intrinsic
def differ_at_least(typing: Any, x: Any, y: Any, start: Any, mask: Any, level: Any) -> Any:
    """`at_least` of y - x, which is written nowhere."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        of_x, of_y = (_load(context, builder, signature.args[i], arguments[i], arguments[2]) for i in (0, 1))
        return _compare(builder, builder.fsub(of_y, of_x), arguments[3], arguments[4])

    return types.uint64(x, y, types.intp, mask, mask), emit


@_intrinsic
def unambiguous(typing: Any, x: Any, start: Any, y: Any, at: Any, alpha: Any, tau: Any) -> Any:
    """Of the LANES floats from x[start] and y[at]: where x^2 > alpha y and |x| > tau."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        of_x, of_y = (_load(context, builder, signature.args[i], arguments[i], arguments[i + 1]) for i in (0, 2))
        factor, level = (_splat(builder, number, of_x.type) for number in arguments[4:])
        clear = builder.fcmp_ordered(">", builder.fmul(of_x, of_x), builder.fmul(factor, of_y))
        above, below = builder.fcmp_ordered(">", of_x, level), builder.fcmp_ordered("<", of_x, builder.fneg(level))
        return builder.bitcast(builder.and_(clear, builder.or_(above, below)), ir.IntType(LANES))

    return types.uint64(x, types.intp, y, types.intp, x.dtype, x.dtype), emit


@_intrinsic
def largest(typing: Any, x: Any, start: Any, mask: Any) -> Any:
    """The largest of bits & mask, as an integer, among the LANES numbers from x[start]."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = _load(context, builder, signature.args[0], arguments[0], arguments[1])

        def larger(one: Any, other: Any) -> Any:
            return builder.select(builder.icmp_signed(">", one, other), one, other)

        return _fold(builder, _magnitudes(builder, numbers, arguments[2]), larger)

    return mask(x, types.intp, mask), emit


@_intrinsic
def product_sum(typing: Any, x: Any, start: Any, y: Any, at: Any) -> Any:
    """The sum of the LANES products x[start + i] y[at + i], added in halves: the same bits on every machine."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        of_x, of_y = (_load(context, builder, signature.args[i], arguments[i], arguments[i + 1]) for i in (0, 2))
        return _fold(builder, builder.fmul(of_x, of_y), builder.fadd)

    return x.dtype(x, types.intp, y, types.intp), emit


@_intrinsic
def negative(typing: Any, x: Any, start: Any) -> Any:
    """Which of the 64 numbers from x[start] are below zero (-0 is not)."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = _load(context, builder, signature.args[0], *arguments)
        zeros = ir.Constant(numbers.type, [0.0] * LANES)
        return builder.bitcast(builder.fcmp_ordered("<", numbers, zeros), ir.IntType(LANES))

    return types.uint64(x, types.intp), emit


@_intrinsic
def nonzero(typing: Any, x: Any, start: Any) -> Any:
    """Which of the 64 bytes from x[start] are not zero."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        numbers = _load(context, builder, signature.args[0], *arguments)
        zeros = ir.Constant(numbers.type, [0] * LANES)
        return builder.bitcast(builder.icmp_unsigned("!=", numbers, zeros), ir.IntType(LANES))

    return types.uint64(x, types.intp), emit


@_intrinsic
def spread_(typing: Any, out: Any, start: Any, word: Any) -> Any:
    """The 64 bytes from out[start] become the bits of the word."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments[:2])
        bits = builder.bitcast(arguments[2], ir.VectorType(ir.IntType(1), LANES))
        builder.store(builder.zext(bits, address.type.pointee), address, align=1)
        return context.get_dummy_value()

    return types.void(out, types.intp, types.uint64), emit


@_intrinsic
def add_signed_(typing: Any, out: Any, start: Any, word: Any, scale: Any) -> Any:
    """The 64 numbers from out[start] grow by scale, or shrink by it where the word has a bit."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], *arguments[:2])
        numbers = _load(context, builder, signature.args[0], *arguments[:2])
        bits = builder.bitcast(arguments[2], ir.VectorType(ir.IntType(1), LANES))
        up = _splat(builder, arguments[3], numbers.type)
        down = _splat(builder, builder.fneg(arguments[3]), numbers.type)
        builder.store(builder.fadd(numbers, builder.select(bits, down, up)), address, align=numbers.align)
        return context.get_dummy_value()

    return types.void(out, types.intp, types.uint64, out.dtype), emit


@_intrinsic
def load_word(typing: Any, packed: Any, place: Any) -> Any:
    """The eight bytes from packed[place], lowest first."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.load(_address(context, builder, signature.args[0], arguments[0], arguments[1], ir.IntType(64)))
        word.align = 1
        return word

    return types.uint64(packed, types.intp), emit


@_intrinsic
def store_word_(typing: Any, packed: Any, place: Any, word: Any) -> Any:
    """The eight bytes from packed[place] become those of the word, lowest first."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        address = _address(context, builder, signature.args[0], arguments[0], arguments[1], ir.IntType(64))
        builder.store(arguments[2], address, align=1)
        return context.get_dummy_value()

    return types.void(packed, types.intp, types.uint64), emit


@_intrinsic
def ones(typing: Any, word: Any) -> Any:
    """How many bits of a word are set."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.ctpop(arguments[0])

    return types.int64(types.uint64), emit


@_intrinsic
def lowest(typing: Any, word: Any) -> Any:
    """The place of the lowest set bit of a word that is not zero."""

    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        return builder.cttz(arguments[0], cgutils.true_bit)

    return types.int64(types.uint64), emit


def _load(context: Any, builder: Any, array_type: Any, array: Any, start: Any) -> Any:
    """LANES numbers of an array, as a vector."""
    numbers = builder.load(_address(context, builder, array_type, array, start))
    numbers.align = array_type.dtype.bitwidth // 8
    return numbers


def _address(context: Any, builder: Any, array_type: Any, array: Any, start: Any, kind: Any = None) -> Any:
    """Where array[start] is, as a pointer to LANES numbers of the array's type or to the given type."""
    lanes = ir.VectorType(context.get_value_type(array_type.dtype), LANES)
    address = builder.gep(context.make_array(array_type)(context, builder, array).data, [start])
    return builder.bitcast(address, (kind or lanes).as_pointer())


def _compare(builder: Any, numbers: Any, mask: Any, level: Any) -> Any:
    """One bit for each number: whether its bits & mask, as an integer, reach the level."""
    magnitudes = _magnitudes(builder, numbers, mask)
    reached = builder.icmp_signed(">=", magnitudes, _splat(builder, level, magnitudes.type))
    return builder.bitcast(reached, ir.IntType(LANES))


def _magnitudes(builder: Any, numbers: Any, mask: Any) -> Any:
    """The numbers' bits & mask, as integers."""
    vector = ir.VectorType(mask.type, LANES)
    return builder.and_(builder.bitcast(numbers, vector), _splat(builder, mask, vector))


def _fold(builder: Any, vector: Any, join: Any) -> Any:
    """All lanes in one number: the upper half is joined to the lower one until a single lane is left."""
    width = LANES
    while width > 1:
        width //= 2
        lower, upper = (_part(builder, vector, side * width, width) for side in (0, 1))
        vector = join(lower, upper)
    return builder.extract_element(vector, ir.Constant(ir.IntType(32), 0))


def _part(builder: Any, vector: Any, first: int, width: int) -> Any:
    """Some neighbouring lanes."""
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), width), list(range(first, first + width)))
    return builder.shuffle_vector(vector, vector, lanes)


def _splat(builder: Any, value: Any, vector: Any) -> Any:
    """A vector whose lanes all hold the value."""
    one = builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(ir.IntType(32), 0))
    lanes = ir.Constant(ir.VectorType(ir.IntType(32), vector.count), [0] * vector.count)
    return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), lanes)
