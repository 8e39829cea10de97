"""Advice: what a step will take by each method on a network, whether to compress there, and how far that is known.

rehearse    each method on each rank by itself: computing, encoding, decoding, bytes     measure, actors
network     seconds of real collectives, or usual ones and a rate                        network, outlook
forecast    the timeline of a step (thinwire.timeline) from both, with an interval       rehearsal, outlook
held out    forecasts beside the laboratory's measurements                               held_out
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from thinwire.advice.actors import OwnLoad
from thinwire.advice.candidates import candidates
from thinwire.advice.measure import Programme, rehearse
from thinwire.advice.network import measured_wire
from thinwire.advice.outlook import Advice as Advice
from thinwire.advice.outlook import Prospect as Prospect
from thinwire.advice.outlook import tcp, usual_wire
from thinwire.engines.ddp.attachment import unwrapped
from thinwire.errors import ConfigError
from thinwire.exchange import Group, Link
from thinwire.link import rate_of
from thinwire.timeline import Wire


def advise(
    ddp: torch.nn.Module,
    loss: Callable[[torch.nn.Module], Tensor],
    link: str | float | Link | Wire | None = None,
    *,
    optimizer: Optimizer | None = None,
    workers: int | None = None,
    methods: str | Sequence[str] | None = None,
    every: int = 30,
    rounds: int = 3,
    steps: int = 5,
) -> Advice:
    """What a step of this DistributedDataParallel model would take by each method, and whether to compress.

    Call it on every rank. `loss(model)` gives the loss of a usual batch. Copies of the model are trained; the model
    itself, its optimizer and its hooks are not touched. Without a `link` the network between the ranks is measured;
    else it is a rate ("1gbit", or bits a second) or a `thinwire.timeline.Wire` of your own figures. `workers` asks
    about another number of them than there are here. `methods` are texts in place of those that suit the `optimizer`;
    outer steps exchange each `every` steps.

    >>> import torch
    >>> import torch.distributed as dist
    >>> from torch.nn.parallel import DistributedDataParallel
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> ddp = DistributedDataParallel(torch.nn.Linear(1000, 1000))
    >>> optimizer, x = torch.optim.SGD(ddp.parameters(), lr=0.1), torch.randn(8, 1000)
    >>> asked = {"optimizer": optimizer, "workers": 4, "methods": "memsgd(topk(0.01))", "rounds": 1}
    >>> advice = advise(ddp, lambda model: model(x).square().mean(), "10mbit", **asked)
    >>> advice.compresses, advice.row("dense").seconds > 4.8  # 6 MB at 10 Mbit/s
    (True, True)
    >>> dist.destroy_process_group()
    """
    model = unwrapped(ddp)
    group = Group(model.process_group)
    wire = _wire(link, group, workers or group.size, next(model.parameters()).device)
    named = methods if methods is None or isinstance(methods, str) else ";".join(methods)
    asked = candidates(named, _kind(optimizer), every=every)
    plan = Programme(OwnLoad(model, loss, optimizer), asked, wire.workers, rounds, steps)
    rehearsal = rehearse(plan, wire, model=type(model.module).__name__, known=link is None)
    return Advice(rehearsal, wire)


def _wire(link: str | float | Link | Wire | None, group: Group, workers: int, device: torch.device) -> Wire:
    """What joins so many workers: as measured, or of a rate, with usual latencies."""
    if workers < 2:
        raise ConfigError(
            f"advice is for at least 2 workers, and here is {workers}: launch more ranks, or say workers=4 and a link"
        )
    if isinstance(link, Wire):
        return link.at(workers)
    if link is None:
        if group.size < 2:
            raise ConfigError("one rank alone has no network to measure: name the link, such as link='1gbit'")
        return measured_wire(group, device).at(workers)
    ways = (link.up, link.down) if isinstance(link, Link) else (rate_of(link) if isinstance(link, str) else link, None)
    return tcp(usual_wire(workers)).shaped(*ways)


def _kind(optimizer: Optimizer | None) -> str:
    """What goes with an optimizer: by its name, and whether SGD has momentum."""
    if optimizer is None:
        return "sgd"
    momentum = any(group.get("momentum") for group in optimizer.param_groups)
    return "momentum" if momentum and "adam" not in type(optimizer).__name__.lower() else type(optimizer).__name__
