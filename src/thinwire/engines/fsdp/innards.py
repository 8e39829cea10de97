"""The one place that touches private parts of torch's FSDP2: which parameters a module reduces together, and how.

torch has no public name for them. What is missing in another version of torch is named in an `AttachError`; the tests
look at the version that is installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from thinwire.errors import AttachError

KNOWN = "2.11 to 2.13"
"""The versions of torch with which it was run; others serve where they keep the same parts."""
OF_GROUP = (
    "fsdp_params",
    "mesh_info",
    "offload_policy",
    "gradient_divide_factor",
    "force_sum_reduction_for_comms",
    "_reduce_scatter_comm",
    "_all_reduce_hook",
)
"""What is read of a group of parameters that are reduced together."""


@dataclass(frozen=True)
class ReducedTogether:
    """The parameters of one module (or of several that were sharded as one) whose gradients arrive in one hook."""

    module: FSDPModule
    name: str
    group: Any
    """torch's `FSDPParamGroup`."""

    @property
    def parameters(self) -> list[nn.Parameter]:
        """Those that are trained, in the order of the flat tensor."""
        every = [each.sharded_param for each in self.group.fsdp_params]
        return [parameter for parameter in every if parameter.requires_grad]

    def divisor(self, dtype: torch.dtype) -> float:
        """By what FSDP divides after the hook: with float16, in which a sum of all ranks might overflow, by a part of
        the number of ranks; and by all of it where it was told to use no operation but the sum."""
        group = self.group
        half = dtype not in (torch.float32, torch.bfloat16)
        if not half and not group.force_sum_reduction_for_comms:
            return 1.0
        factor = float(group.gradient_divide_factor or group.mesh_info.shard_process_group.size())
        return factor / _before(factor) if half else factor

    @property
    def refusals(self) -> Iterator[str]:
        """Why these gradients cannot be exchanged between sites, with the remedy."""
        group, kind = self.group, type(self.group._reduce_scatter_comm).__name__
        if type(group.offload_policy).__name__ == "CPUOffloadPolicy":
            yield "offloads its gradients to the CPU within the backward pass: use fully_shard without offload_policy"
        if not kind.startswith(("Default", "ProcessGroupAlloc", "SymmMem")):
            yield f"has a custom reduce-scatter ({kind}), whose result may be no mean: leave torch's own in its place"

    @property
    def is_underway(self) -> bool:
        """Whether FSDP has not ended the backward pass itself yet."""
        context = getattr(_part(self.module, "_get_fsdp_state")(), "_state_ctx", None)
        return bool(getattr(context, "post_backward_final_callback_queued", False))

    @property
    def hook(self) -> Any:
        """What is called with the site's mean."""
        return self.group._all_reduce_hook


def _before(factor: float) -> float:
    """By what FSDP divides float16 gradients before it adds them up: the largest power of two near the root of all."""
    power = 1.0
    while factor % power == 0 and factor / power > power:
        power *= 2
    return power


def reduced_together(model: nn.Module) -> list[ReducedTogether]:
    """All groups of a model, in the order in which a backward pass mostly reaches them: the last module first."""
    found: dict[int, ReducedTogether] = {}
    for name, module in model.named_modules():
        if isinstance(module, FSDPModule):
            groups = _groups(module)
            if len(groups) > 1:
                raise AttachError(
                    f"module {name or 'the root'!r} holds {len(groups)} groups of parameters (shard_placement_fn gives "
                    "them meshes of their own), and torch has one hook for all: give each mesh a fully_shard module"
                )
            for group in groups:
                found.setdefault(id(group), ReducedTogether(module, name or "the root", group))
    return list(reversed(found.values()))


def _groups(module: FSDPModule) -> Sequence[Any]:
    state = _part(module, "_get_fsdp_state")()
    groups = getattr(state, "_fsdp_param_groups", None)
    if groups is None:  # before torch 2.12 there was at most one
        one = _part(state, "_fsdp_param_group")
        groups = [] if one is None else [one]
    for group in groups:
        for name in OF_GROUP:
            _part(group, name)
        for parameter in group.fsdp_params:
            _part(parameter, "sharded_param")
    return list(groups)


def _part(owner: Any, name: str) -> Any:
    """A private part, or an error that names it."""
    try:
        return getattr(owner, name)
    except AttributeError:
        raise AttachError(
            f"torch {torch.__version__} keeps no {type(owner).__name__}.{name}, by which thinwire finds FSDP's "
            f"parameters; it knows torch {KNOWN}. Use such a version, or DistributedDataParallel"
        ) from None


def local(tensor: Any) -> Tensor:
    """A sharded tensor's part on this rank: the very numbers, no copy."""
    return tensor._local_tensor  # type: ignore[no-any-return]
