"""The rule that `auto` takes for an optimizer as it is: `docs/choosing.md`, as code."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch

from thinwire.engines.step_sizes import StepSizes
from thinwire.errors import AttachError
from thinwire.feedback import Rule
from thinwire.spec import parse

QUANTISED = "plain(qsgd(15))"


@dataclass(frozen=True)
class Recommended:
    """A rule, and what is to be said of it."""

    rule: Rule
    why: str


def recommended(
    optimizer: torch.optim.Optimizer | None, step_sizes: StepSizes | None, names: Iterable[str]
) -> Recommended:
    """What keeps the loss behind this optimizer, untouched.

    >>> import torch
    >>> x = torch.nn.Parameter(torch.zeros(3))
    >>> for kind in (torch.optim.SGD, torch.optim.AdamW):
    ...     optimizer = kind([x], lr=0.1)
    ...     print(recommended(optimizer, StepSizes({"x": x}, optimizer), ["x"]).rule)
    memsgd(topk(0.01, values=power4))
    plain(qsgd(15))
    """
    if optimizer is None or step_sizes is None:
        raise AttachError(
            "auto chooses its rule by the optimizer: pass it, attach(ddp, 'auto', optimizer), or name the rule, as "
            "auto(plain(qsgd(15)))"
        )
    named = list(names)
    if any(step_sizes.is_adaptive(name) for name in named):
        return Recommended(
            parse(QUANTISED),
            "the optimizer is adaptive: a memory in front of it would lose the training, and nothing without one sends "
            "much less. auto(memadam(topk(0.01, values=power4))) with torch.optim.SGD at the same rate and decay "
            "brings its own Adam and sends 60 times fewer bytes than float32 (docs/adaptive.md)",
        )
    if type(optimizer) is not torch.optim.SGD:
        return Recommended(
            parse(QUANTISED),
            f"{type(optimizer).__name__} is not known to take late sums for what they are: only what is unbiased is "
            "sent. Name a rule, as auto(memsgd(topk(0.01))), if its step is rate times gradient",
        )
    if step_sizes.has_momentum:
        return Recommended(
            parse("memsgd(topk(0.01))"),
            "SGD with momentum: digits ended at dense training's accuracy with it (docs/choosing.md)",
        )
    return Recommended(parse("memsgd(topk(0.01, values=power4))"), "SGD without momentum (docs/choosing.md)")
