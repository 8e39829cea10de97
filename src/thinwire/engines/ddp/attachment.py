"""How a model is attached, as a value that is checked when it is built; and which models can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from thinwire.engines.ddp.hook import plug_of
from thinwire.engines.ddp.late import check_late
from thinwire.errors import AttachError
from thinwire.exchange import Exchange

if TYPE_CHECKING:
    from thinwire.moments import Moments


@dataclass(frozen=True)
class Attachment:
    """What `attach` was given beside the model and the rule."""

    optimizer: torch.optim.Optimizer | None = None
    """Whose step sizes rules are told."""
    moments: Moments | None = None
    """Where second moments come from."""
    scaler: torch.amp.GradScaler | None = None
    """Who knows the loss scale."""
    nonfinite: Literal["raise", "skip", "late"] = "raise"
    """What becomes of a step with NaN or infinity: an error, NaN gradients, or an error later (see `late`)."""
    seed: int = 0
    ledger_every: int = 10
    """Steps between two measurements of norms; 0: none."""

    def __post_init__(self) -> None:
        if self.nonfinite not in ("raise", "skip", "late"):
            raise AttachError(f'nonfinite must be "raise", "skip" or "late", got {self.nonfinite!r}')
        if self.nonfinite == "late":
            check_late(self.optimizer, self.scaler)

    @property
    def scaled(self) -> bool:
        """Whether losses are scaled."""
        return self.scaler is not None and self.scaler.is_enabled()

    @property
    def scale(self) -> float:
        """The present loss scale."""
        return float(self.scaler.get_scale()) if self.scaler is not None and self.scaled else 1.0


def trained(ddp: DistributedDataParallel) -> dict[str, Tensor]:
    """The parameters that DDP exchanges, by the names they have in the plain module (torch.compile adds a prefix)."""
    return {
        name.replace("_orig_mod.", ""): parameter
        for name, parameter in ddp.module.named_parameters()
        if parameter.requires_grad and name not in ddp.parameters_to_ignore
    }


def unwrapped(ddp: torch.nn.Module) -> DistributedDataParallel:
    """The DDP model itself, also from inside torch.compile(ddp)."""
    module = getattr(ddp, "_orig_mod", ddp)
    if not isinstance(module, DistributedDataParallel):
        if any("FSDP" in kind.__name__ or "FullySharded" in kind.__name__ for kind in type(module).__mro__):
            raise AttachError(
                f"{type(module).__name__} holds shards of parameters: use thinwire.attach_fsdp(model, rule, optimizer, "
                "mesh=mesh) with fully_shard (FSDP2), whose mesh has the sites in one dimension and the ranks of a "
                "site in the other. torch's older FullyShardedDataParallel is not served"
            )
        raise AttachError(
            "attach takes a torch.nn.parallel.DistributedDataParallel, "
            f"got {type(module).__name__}: wrap the model first, DDP(model)"
        )
    return module


def check_model(ddp: DistributedDataParallel) -> None:
    """Refuse a model whose buckets cannot be exchanged."""
    if getattr(ddp, "_use_python_reducer", False):
        raise AttachError(
            "torch's experimental python_reducer calls hooks parameter by parameter, outside DDP's buckets, which "
            'thinwire does not serve: set torch._dynamo.config.optimize_ddp = "ddp_optimizer" (the default) before '
            "building DDP"
        )
    if ddp.mixed_precision is not None:
        raise AttachError("DDP's mixed_precision brings a comm hook of its own: use torch.autocast instead")
    for name, module in ddp.module.named_modules():
        if getattr(module, "sparse", False) is True:
            raise AttachError(f"module {name!r} makes sparse gradients, which cannot be compressed: set sparse=False")
    for name, parameter in trained(ddp).items():
        if hasattr(parameter, "_in_backward_optimizers"):
            raise AttachError(
                f"parameter {name!r} has an optimizer within its backward pass, for which DDP takes its only hook: "
                "step an ordinary optimizer after backward()"
            )
        if not parameter.is_floating_point():
            raise AttachError(
                f"parameter {name!r} is {parameter.dtype}; only real floating-point ones can be exchanged"
            )
    plug_of(ddp)


def check_exchange(exchange: Exchange, ddp: DistributedDataParallel) -> None:
    """Refuse an exchange among other ranks than the model's."""
    group = ddp.process_group
    mine, theirs = (dist.get_rank(group), dist.get_world_size(group)), (exchange.rank, exchange.size)
    if mine != theirs:
        raise AttachError(
            "the exchange must span the ranks of the model's process group: there this is rank "
            f"{mine[0]} of {mine[1]}, in the exchange {theirs[0]} of {theirs[1]}"
        )
