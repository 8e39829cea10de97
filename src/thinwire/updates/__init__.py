"""What is done with the exchanged gradient: the step of the outer loop.

An update is called as `update(x, g, size)` with tensors by name and changes x in place. `simulate` takes one; under DDP
call it after `backward()` in place of `optimizer.step()`: every rank has the same g, so every rank takes the same step.
"""

from thinwire.updates.steps import L1 as L1
from thinwire.updates.steps import Box as Box
from thinwire.updates.steps import Descent as Descent
from thinwire.updates.steps import Muon as Muon
from thinwire.updates.steps import Normalised as Normalised
from thinwire.updates.steps import Proximal as Proximal
from thinwire.updates.steps import Regulariser as Regulariser
from thinwire.updates.steps import Update as Update
