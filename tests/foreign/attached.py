"""DDP models that attach themselves: every model that foreign code builds has a hook from its first step on."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from thinwire import attach, parse
from thinwire.errors import AttachError
from thinwire.ledger import Ledger

PLAIN = "no hook"
TORCHS = "torch's allreduce_hook"
BUILT, ATTACHED, REFUSED = "built", "attached", "refused: "

Register = Callable[[DistributedDataParallel], Ledger | None]


def registration(hook: str) -> Register:
    """What gives a model its hook: a rule of thinwire, or, to compare with, `PLAIN` or `TORCHS`."""
    if hook == PLAIN:
        return lambda ddp: None
    if hook == TORCHS:
        return lambda ddp: ddp.register_comm_hook(None, allreduce_hook)
    rule = parse(hook)
    return lambda ddp: attach(ddp, rule).ledger


def register_with_every_model(register: Register, note: Callable[[str], None]) -> list[Ledger]:
    """From now on, give each DDP model of this process the hook when it is built; one that is refused stays as it is.

    What happens is noted (`BUILT`, and `ATTACHED`, or `REFUSED` and the reason). The list that is returned grows with
    each model that was attached: the ledgers tell how many steps thinwire has exchanged.
    """
    build = DistributedDataParallel.__init__
    ledgers: list[Ledger] = []

    @wraps(build)
    def init(self: DistributedDataParallel, *args: Any, **options: Any) -> None:
        build(self, *args, **options)
        note(BUILT)
        try:
            ledger = register(self)
        except AttachError as error:
            note(f"{REFUSED}{error}")
        else:
            note(ATTACHED)
            ledgers.extend([ledger] if ledger else [])

    DistributedDataParallel.__init__ = init
    return ledgers
