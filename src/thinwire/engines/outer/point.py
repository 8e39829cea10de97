"""The outer point: what all workers hold in common of one fragment of the parameters, and how it steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from thinwire.channel import Channel
from thinwire.layout import Layout

Parameters = Mapping[str, Tensor]


class Fragment:
    """Some of the parameters, as flat vectors of the state's type: one for each type and device among them."""

    def __init__(self, channel: Channel) -> None:
        infos, groups = channel.parameters, dict[object, list[str]]()
        for name, info in infos.items():
            groups.setdefault((info.dtype, info.device), []).append(name)
        self.layouts: list[Layout] = [channel.layout(names) for names in groups.values()]
        self._like = [infos[names[0]] for names in groups.values()]

    def flats(self, parameters: Parameters) -> list[Tensor]:
        """The parameters' present numbers, copied."""
        return [
            torch.cat([parameters[piece.name].detach().reshape(-1) for piece in layout.pieces]).to(like.state_dtype)
            for layout, like in zip(self.layouts, self._like, strict=True)
        ]

    @torch.no_grad()
    def write_(self, flats: Sequence[Tensor], parameters: Parameters) -> None:
        """Put numbers into the parameters, rounded to their types."""
        for name, view in self.views(flats).items():
            parameters[name].copy_(view)

    def rounded(self, flats: Sequence[Tensor]) -> list[Tensor]:
        """The numbers as the parameters can hold them; not to be written to, for they may be the same tensors."""
        return [flat.to(like.dtype).to(like.state_dtype) for flat, like in zip(flats, self._like, strict=True)]

    def views(self, flats: Sequence[Tensor]) -> dict[str, Tensor]:
        """Each parameter's part of the numbers, in its shape."""
        pairs = zip(self.layouts, flats, strict=True)
        return {p.name: view.view(p.shape) for layout, flat in pairs for p, view in layout.views(flat)}

    def empty(self) -> list[Tensor]:
        """Vectors to be written to."""
        pairs = zip(self.layouts, self._like, strict=True)
        return [torch.empty(lay.numel, dtype=like.state_dtype, device=like.device) for lay, like in pairs]


class OuterPoint:
    """θ of one fragment in the state's type (float32 where parameters are narrower), and the momentum v."""

    def __init__(self, fragment: Fragment, parameters: Parameters, momentum: float) -> None:
        self.fragment = fragment
        self.flats = fragment.flats(parameters)
        self.velocities = [torch.zeros_like(flat) for flat in self.flats] if momentum else []

    def rounded(self) -> list[Tensor]:
        """θ as the parameters can hold it."""
        return self.fragment.rounded(self.flats)

    def step_(self, answers: Sequence[Tensor], lr: float, momentum: float) -> None:
        """v <- μ v + d;   θ <- θ - lr (d + μ v)."""
        for velocity, answer in zip(self.velocities, answers, strict=momentum > 0):
            velocity.mul_(momentum).add_(answer)
            answer.add_(velocity, alpha=momentum)
        for flat, answer in zip(self.flats, answers, strict=True):
            flat.sub_(answer, alpha=lr)


def cut(parameters: Parameters, fragments: int) -> list[dict[str, Tensor]]:
    """The parameters in their order, in so many parts of about equal size; no parameter is divided."""
    parts: list[dict[str, Tensor]] = [{}]
    total, done = sum(parameter.numel() for parameter in parameters.values()), 0
    for place, (name, parameter) in enumerate(parameters.items()):
        parts[-1][name] = parameter
        done += parameter.numel()
        left = fragments - len(parts)
        if left and (done * fragments >= total * len(parts) or len(parameters) - place - 1 == left):
            parts.append({})
    return parts
