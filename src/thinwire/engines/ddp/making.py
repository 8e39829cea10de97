"""The handle of a rule that has all it needs; refused here, on every rank, where something is missing."""

from __future__ import annotations

from torch.optim import Optimizer

from thinwire.channel import Channel
from thinwire.engines.auto import recommended
from thinwire.engines.auto.recommended import Recommended
from thinwire.engines.ddp.attachment import Attachment
from thinwire.engines.ddp.autopilot import Autopilot
from thinwire.engines.ddp.handle import Handle
from thinwire.engines.ddp.holding import Holding
from thinwire.engines.needs import check_agreement, check_momentum, check_need, check_one_backward, warn_of_optimizer
from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import AttachError
from thinwire.exchange import Exchange, Reduces, Sharded
from thinwire.feedback import Auto, Need, Rule

WATCHED = "attach(ddp, rule, moments=thinwire.moments.watch(ddp))"
SUMS_ALONE = "a site adds up its members' gradients before anything is sent, and no sample is left. Use memsgd or ef21"
"""Why there are no second moments of samples where shards are exchanged."""


def handle_of(
    holding: Holding,
    exchange: Exchange,
    method: Rule | Auto,
    given: Attachment,
    *,
    call: str,
    moments: str = SUMS_ALONE,
    depth: int = 4,
) -> Handle:
    """A handle for what is held. `call` and `moments` are remedies, for errors; `depth` says where the user called."""
    chosen = _chosen(method, holding, given.optimizer)
    owners = exchange.owners if isinstance(exchange, Sharded) else None
    channel = Channel(
        chosen.rule, holding.parts, rank=exchange.rank, size=exchange.size, seed=given.seed, owners=owners
    )
    step_sizes = None if given.optimizer is None else StepSizes(holding.named, given.optimizer)
    check_need(channel, Need.STEP_SIZE, step_sizes is not None, call)
    check_need(channel, Need.MOMENTS, given.moments is not None, moments)
    check_one_backward(channel)
    gathers = holding.ddp is not None and not holding.shard and owners is None and not isinstance(method, Auto)
    check_agreement(channel, gathers, 'workers under auto, with shards, between sites or with exchange="server"')
    check_momentum(channel, step_sizes)
    warn_of_optimizer(channel, step_sizes, stacklevel=depth)
    _check_late(method, holding, exchange, given)
    handle = Handle(holding, channel, exchange, given, step_sizes)
    if isinstance(method, Auto):
        text = str(Auto(chosen.rule))
        handle.steer(Autopilot(channel, _able_to_reduce(exchange, holding), handle.ledger, text, chosen.why))
    return handle


def _check_late(method: Rule | Auto, holding: Holding, exchange: Exchange, given: Attachment) -> None:
    """Refuse to leave the verdict for later where ranks cannot agree on it on the device."""
    able = holding.ddp is not None and isinstance(exchange, Reduces) and not isinstance(exchange, Sharded)
    able = able and holding.council is exchange  # and not between sites alone
    if given.nonfinite == "late" and (isinstance(method, Auto) or not able):
        raise AttachError(
            'nonfinite="late" is for a DDP model under one rule, with the exchange of its own process group: leave '
            'exchange= out and name a rule, or use nonfinite="raise"'
        )


def _chosen(method: Rule | Auto, holding: Holding, optimizer: Optimizer | None) -> Recommended:
    """The rule that may compress."""
    if not isinstance(method, Auto):
        return Recommended(method, "named by the user")
    if method.rule is not None:
        return Recommended(method.rule, "the rule is named by the user")
    step_sizes = None if optimizer is None else StepSizes(holding.named, optimizer)
    return recommended(optimizer, step_sizes, holding.named)


def _able_to_reduce(exchange: Exchange, holding: Holding) -> Reduces:
    """The exchange, which can add up plain numbers: dense buckets go that way."""
    if holding.ddp is None or isinstance(exchange, Sharded) or not isinstance(exchange, Reduces):
        raise AttachError(
            f"auto sends the buckets of a DDP model dense where that is faster, by an all-reduce (reduce_), for which "
            f"{type(exchange).__name__} does not serve here: leave exchange= out, give your own exchange that method "
            "(thinwire.exchange.Reduces), or attach a rule in place of auto"
        )
    return exchange
