"""Linear models trained by Mem-SGD on all cores of one machine: one vector, no locks, compiled by numba.

`engine` trains on `samples` (in `units`) with one each of the `losses`, `rules`, `schedules` (and averages),
`regularisers` and orders (`order`). `steps` holds what is compiled, `estimators` the same models for scikit-learn.
"""

from thinwire.linear.engine import LockFree as LockFree
from thinwire.linear.engine import Run as Run
from thinwire.linear.engine import Snapshot as Snapshot
from thinwire.linear.losses import Loss as Loss
from thinwire.linear.order import Order as Order
from thinwire.linear.order import independent as independent
from thinwire.linear.order import shuffled as shuffled
from thinwire.linear.regularisers import Decoupled as Decoupled
from thinwire.linear.regularisers import InMemory as InMemory
from thinwire.linear.regularisers import Regulariser as Regulariser
from thinwire.linear.samples import Samples as Samples
from thinwire.linear.schedules import Average as Average
from thinwire.linear.schedules import Bottou as Bottou
from thinwire.linear.schedules import Constant as Constant
from thinwire.linear.schedules import Final as Final
from thinwire.linear.schedules import Schedule as Schedule
from thinwire.linear.schedules import Shifted as Shifted
from thinwire.linear.schedules import Theory as Theory
from thinwire.linear.schedules import Uniform as Uniform
from thinwire.linear.schedules import Weighted as Weighted
from thinwire.linear.schedules import shift_for as shift_for
from thinwire.linear.schedules import weight_sum as weight_sum
