"""Engines drive the halves of a rule and own no algorithm.

`ddp` attaches a rule to real processes. A `simulation` has n channels in one process and is given each worker's
gradients; `simulate` is the loop that runs a whole problem, on a simulation or, where the rule allows it, on a `crowd`,
which serves all workers by one call (`rounds` is what both are to the loop). `lockfree` is the old name of
`thinwire.linear`.
"""
