"""The handle of a rule that has all it needs; refused here, on every rank, where something is missing."""

from __future__ import annotations

from thinwire.channel import Channel
from thinwire.engines.ddp.attachment import Attachment
from thinwire.engines.ddp.handle import Handle
from thinwire.engines.ddp.holding import Holding
from thinwire.engines.needs import check_momentum, check_need, check_one_backward, warn_of_optimizer
from thinwire.engines.step_sizes import StepSizes
from thinwire.exchange import Exchange, Sharded
from thinwire.feedback import Need, Rule

WATCHED = "attach(ddp, rule, moments=thinwire.moments.watch(ddp))"
SUMS_ALONE = "a site adds up its members' gradients before anything is sent, and no sample is left. Use memsgd or ef21"
"""Why there are no second moments of samples where shards are exchanged."""


def handle_of(
    holding: Holding, exchange: Exchange, rule: Rule, given: Attachment, *, call: str, moments: str = SUMS_ALONE
) -> Handle:
    """A handle for what is held. `call` and `moments` are remedies, for errors."""
    owners = exchange.owners if isinstance(exchange, Sharded) else None
    channel = Channel(rule, holding.parts, rank=exchange.rank, size=exchange.size, seed=given.seed, owners=owners)
    step_sizes = None if given.optimizer is None else StepSizes(holding.named, given.optimizer)
    check_need(channel, Need.STEP_SIZE, step_sizes is not None, call)
    check_need(channel, Need.MOMENTS, given.moments is not None, moments)
    check_one_backward(channel)
    check_momentum(channel, step_sizes)
    warn_of_optimizer(channel, step_sizes, stacklevel=4)
    return Handle(holding, channel, exchange, given, step_sizes)
