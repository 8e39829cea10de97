"""What is done with the exchanged gradient: the step of the outer loop.

An update is called as `update(x, g, size)` with tensors by name and changes x in place. `simulate` takes one; under DDP
`UpdateOptimizer` is the optimizer that steps by it: every rank has the same g, so every rank takes the same step.
"""

from thinwire.updates.linear_minimisers import NewtonSchulz as NewtonSchulz
from thinwire.updates.linear_minimisers import Sign as Sign
from thinwire.updates.optimizer import UpdateOptimizer as UpdateOptimizer
from thinwire.updates.steps import L1 as L1
from thinwire.updates.steps import Box as Box
from thinwire.updates.steps import Descent as Descent
from thinwire.updates.steps import Muon as Muon
from thinwire.updates.steps import Normalised as Normalised
from thinwire.updates.steps import Proximal as Proximal
from thinwire.updates.steps import Regulariser as Regulariser
from thinwire.updates.steps import Update as Update
