"""What is done with the exchanged gradient: the step of the outer loop, one way a file.

An update is called as `update(x, g, size)` with tensors by name and changes x in place. `simulate` takes one; under DDP
call it after `backward()` in place of `optimizer.step()`: every rank has the same g, so every rank takes the same step.
"""

from thinwire.updates.base import Regulariser as Regulariser
from thinwire.updates.base import Update as Update
from thinwire.updates.descent import Descent as Descent
from thinwire.updates.muon import Muon as Muon
from thinwire.updates.normalised import Normalised as Normalised
from thinwire.updates.proximal import L1 as L1
from thinwire.updates.proximal import Box as Box
from thinwire.updates.proximal import Proximal as Proximal
