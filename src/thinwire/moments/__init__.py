"""Second moments of per-sample gradients, q = Σ_z (∇f_z / |B|)², in the same backward pass as the gradient.

    moments = watch(model)                  # or watch(ddp); AttachError where a parameter cannot be served
    print(moments.plan())                   # parameter by parameter: source, cost, why
    loss.backward()
    q = moments.take()                      # or moments.pop(name), in a comm hook

Written by hand rather than on BackPACK 1.7 or Opacus 1.6, which were tried first. BackPACK refuses batch norm in
training mode and modules that are called twice, has no layer norm, and is wrong without a word for tied weights (74 %
off in a two-layer example). Opacus is right there, but refuses batch norm, and forms all B × N per-sample gradients
(9 to 76 times a plain step on MLPs, where (δ∘δ)ᵀ(x∘x) takes about 1.5). Both break on in-place activations and
ignore `padding_mode`.

Exact: the layers in `EXACT`, with tied weights, repeated calls and activation checkpoints. Anything else takes
micro-batches, a coarser statistic that has to be asked for by name (`MicroBatches`).
"""

from thinwire.moments.layers import EXACT as EXACT
from thinwire.moments.plan import Entry as Entry
from thinwire.moments.plan import Exact as Exact
from thinwire.moments.plan import MicroBatches as MicroBatches
from thinwire.moments.plan import Plan as Plan
from thinwire.moments.plan import plan as plan
from thinwire.moments.watch import Moments as Moments
from thinwire.moments.watch import split as split
from thinwire.moments.watch import watch as watch
