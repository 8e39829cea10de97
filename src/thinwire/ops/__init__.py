"""Operations on vectors: what the methods call, whichever back-end does the work.

`reference` is the definition of each operation, in plain torch. A faster back-end may take its place only where it
gives the same integers, and the same floats or a stated bound. `serve` adds a kernel from outside, `backend` asks for
one back-end.
"""

from __future__ import annotations

from thinwire.ops import reference
from thinwire.ops.backends import backend as backend
from thinwire.ops.backends import dispatched
from thinwire.ops.backends import serve as serve
from thinwire.ops.blocks import block_count as block_count
from thinwire.ops.blocks import block_lengths as block_lengths
from thinwire.ops.blocks import piece_indices as piece_indices
from thinwire.ops.keys import Key as Key
from thinwire.ops.keys import first_uniforms as first_uniforms
from thinwire.ops.keys import random_bits as random_bits
from thinwire.ops.keys import uniform as uniform
from thinwire.ops.precision import Product as Product
from thinwire.ops.precision import product_epsilon as product_epsilon
from thinwire.ops.precision import product_precision as product_precision

# Choosing entries, alone and in one pass with a memory's step or an increment's.
topk = dispatched(reference.topk)
memory_topk_ = dispatched(reference.memory_topk_)
difference_topk_ = dispatched(reference.difference_topk_)
threshold = dispatched(reference.threshold)
memory_threshold_ = dispatched(reference.memory_threshold_)
difference_threshold_ = dispatched(reference.difference_threshold_)
variance_ = dispatched(reference.variance_)
variance_strom_ = dispatched(reference.variance_strom_)
randk_indices = dispatched(reference.randk_indices)
randk_positions = dispatched(reference.randk_positions)

# Signs, levels and powers of two in place of numbers.
block_norms = dispatched(reference.block_norms)
square_means = dispatched(reference.square_means)
preconditioned = dispatched(reference.preconditioned)
scale_pieces_ = dispatched(reference.scale_pieces_)
negative_bits = dispatched(reference.negative_bits)
add_signs_ = dispatched(reference.add_signs_)
level_codes = dispatched(reference.level_codes)
add_levels_ = dispatched(reference.add_levels_)
levels_within = dispatched(reference.levels_within)
levels_above_zero = dispatched(reference.levels_above_zero)
byte_codes = dispatched(reference.byte_codes)
byte_values = dispatched(reference.byte_values)
power_codes = dispatched(reference.power_codes)
add_powers_ = dispatched(reference.add_powers_)
nearest_powers = dispatched(reference.nearest_powers)
without_zeros = dispatched(reference.without_zeros)
exponent_codes = dispatched(reference.exponent_codes)
exponent_values = dispatched(reference.exponent_values)

# Bits, integers and positions in bytes.
pack_bits = dispatched(reference.pack_bits)
unpack_bits = dispatched(reference.unpack_bits)
pack_codes = dispatched(reference.pack_codes)
unpack_codes = dispatched(reference.unpack_codes)
pack_positions = dispatched(reference.pack_positions)
unpack_positions = dispatched(reference.unpack_positions)
sums_of_gaps = dispatched(reference.sums_of_gaps)
positions_of_sums_ = dispatched(reference.positions_of_sums_)
checksum = dispatched(reference.checksum)

# Sums: what was sent into a vector, rows of a sparse matrix, gradients of samples.
add_at_ = dispatched(reference.add_at_)
add_each_at_ = dispatched(reference.add_each_at_)
mean_at_ = dispatched(reference.mean_at_)
add_folded_ = dispatched(reference.add_folded_)
row_products = dispatched(reference.row_products)
row_sums = dispatched(reference.row_sums)
row_sums_at = dispatched(reference.row_sums_at)
correlation_squares_ = dispatched(reference.correlation_squares_)
first_nonfinite = dispatched(reference.first_nonfinite)
