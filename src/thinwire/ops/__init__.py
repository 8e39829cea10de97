"""Kernels behind typed functions: what the methods call, whichever back-end does the work.

`reference` is the definition of each operation, in plain torch. A faster back-end may take its place only where it
gives the same integers, and the same floats or a stated bound.
"""

from thinwire.ops.keys import Key as Key
from thinwire.ops.keys import random_bits as random_bits
from thinwire.ops.keys import uniform as uniform
from thinwire.ops.reference import block_norms as block_norms
from thinwire.ops.reference import first_nonfinite as first_nonfinite
from thinwire.ops.reference import large_indices as large_indices
from thinwire.ops.reference import natural_exponents as natural_exponents
from thinwire.ops.reference import pack_bits as pack_bits
from thinwire.ops.reference import pack_codes as pack_codes
from thinwire.ops.reference import qsgd_levels as qsgd_levels
from thinwire.ops.reference import randk_indices as randk_indices
from thinwire.ops.reference import topk_indices as topk_indices
from thinwire.ops.reference import unpack_bits as unpack_bits
from thinwire.ops.reference import unpack_codes as unpack_codes
