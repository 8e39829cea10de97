"""Second moments of per-sample gradients, q = Σ_z (∇f_z / |B|)², in the same backward pass as the gradient."""

from thinwire.moments.layers import EXACT as EXACT
from thinwire.moments.microbatch import split as split
from thinwire.moments.plan import Entry as Entry
from thinwire.moments.plan import Exact as Exact
from thinwire.moments.plan import MicroBatches as MicroBatches
from thinwire.moments.plan import Plan as Plan
from thinwire.moments.plan import plan as plan
from thinwire.moments.watch import Moments as Moments
from thinwire.moments.watch import watch as watch
