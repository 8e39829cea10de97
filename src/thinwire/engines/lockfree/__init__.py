"""Mem-SGD for linear models on all cores of one machine: one vector, no locks, compiled by numba."""

from thinwire.engines.lockfree.averages import Average as Average
from thinwire.engines.lockfree.averages import Final as Final
from thinwire.engines.lockfree.averages import Uniform as Uniform
from thinwire.engines.lockfree.averages import Weighted as Weighted
from thinwire.engines.lockfree.averages import weight_sum as weight_sum
from thinwire.engines.lockfree.engine import LockFree as LockFree
from thinwire.engines.lockfree.losses import Loss as Loss
from thinwire.engines.lockfree.order import Order as Order
from thinwire.engines.lockfree.order import independent as independent
from thinwire.engines.lockfree.order import shuffled as shuffled
from thinwire.engines.lockfree.record import Run as Run
from thinwire.engines.lockfree.record import Snapshot as Snapshot
from thinwire.engines.lockfree.regularisers import Decoupled as Decoupled
from thinwire.engines.lockfree.regularisers import InMemory as InMemory
from thinwire.engines.lockfree.regularisers import Regulariser as Regulariser
from thinwire.engines.lockfree.samples import Samples as Samples
from thinwire.engines.lockfree.schedules import Bottou as Bottou
from thinwire.engines.lockfree.schedules import Constant as Constant
from thinwire.engines.lockfree.schedules import Schedule as Schedule
from thinwire.engines.lockfree.schedules import Shifted as Shifted
from thinwire.engines.lockfree.schedules import Theory as Theory
from thinwire.engines.lockfree.schedules import shift_for as shift_for
