"""A run: one setting's transformer, trained by simulated workers that exchange real messages."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from thinwire.engines.outer import OuterSimulation
from thinwire.engines.simulation import Simulation
from thinwire.errors import OptimizerWarning
from thinwire.feedback import Need
from thinwire.ledger import Ledger
from thinwire.papers.adaptive.model import Corpus, Transformer
from thinwire.papers.adaptive.settings import ADAM, MUON, SCALES, AdaptiveSetting
from thinwire.updates import NewtonSchulz, Sign, UpdateOptimizer

LOOKS = 20
"""At the held-out loss, in a run."""
WARM, LEAST = 0.1, 0.1
"""The share of steps in which the rate rises (at most 100), and to which share of its peak a cosine lets it fall."""
BETAS, WEIGHT_DECAY, CLIP = (0.9, 0.99), 0.1, 1.0
SIGNS = 0.5
"""The rate of steps by signs, for embeddings and vectors beside Muon's matrices, as a share of the others'."""
Windows = tuple[Tensor, Tensor]


class Glance(NamedTuple):
    """A run at one moment."""

    step: int
    seconds: float
    sent: int
    """Bytes that a worker has sent."""
    loss: float
    """Of the held-out text."""


@dataclass(frozen=True)
class AdaptiveRun:
    """What a run did."""

    setting: AdaptiveSetting
    parameters: int
    tokens: int
    dense: int
    """Bytes that a worker would have sent in an all-reduce in 32 bits at every step."""
    curve: tuple[Glance, ...]

    @property
    def end(self) -> float:
        return self.curve[-1].loss

    @property
    def best(self) -> float:
        return min(look.loss for look in self.curve)

    @property
    def sent(self) -> list[float]:
        """Bytes at each look; what is exchanged dense is taken for an all-reduce."""
        share = self.dense / self.setting.steps / max(1, self.setting.every)
        return [look.step * share if "identity" in self.setting.rule else float(look.sent) for look in self.curve]

    @property
    def ratio(self) -> float:
        """How many times fewer bytes than a dense all-reduce at every step."""
        return self.dense / max(1.0, self.sent[-1])

    def plain(self) -> dict[str, Any]:
        return asdict(self) | {"setting": self.setting.plain(), "curve": [list(look) for look in self.curve]}

    @staticmethod
    def of_plain(plain: dict[str, Any]) -> AdaptiveRun:
        known = {**plain, "setting": AdaptiveSetting(**plain["setting"])}
        return AdaptiveRun(**{**known, "curve": tuple(Glance(*look) for look in plain["curve"])})


def rate_at(step: int, setting: AdaptiveSetting) -> float:
    """A line up, then half a cosine down to a tenth."""
    warm = max(1, min(100, int(WARM * setting.steps)))
    if step < warm:
        return setting.rate * (step + 1) / warm
    done = (step - warm) / max(1, setting.steps - warm)
    return setting.rate * (LEAST + (1 - LEAST) * 0.5 * (1 + math.cos(math.pi * done)))


def run(setting: AdaptiveSetting, path: str | None, watch: Callable[[int], None]) -> AdaptiveRun:
    """Train; `watch` is told each step."""
    scale, device = SCALES[setting.scale], torch.device("cuda" if torch.cuda.is_available() else "cpu")
    corpus = Corpus.read(path, device)
    torch.manual_seed(setting.seed)
    model = Transformer(scale, corpus.tokens).to(device)
    workers = (_Apart if setting.every else _Together)(model, setting, device)
    draws = torch.Generator(device).manual_seed(1000 + setting.seed)
    begun, between = time.perf_counter(), _between_looks(setting)
    curve: list[Glance] = []
    for step in range(setting.steps):
        workers.set_rate_(rate_at(step, setting))
        last = len(corpus.train) - scale.context - 1
        starts = torch.randint(last, (scale.workers, scale.batch), generator=draws, device=device)
        workers.step([corpus.windows(own, scale.context) for own in starts])
        watch(step + 1)
        if (step + 1) % between == 0 or step + 1 == setting.steps:
            loss = corpus.loss(model, scale.context)
            sent = int(workers.ledger.summary()["sent_bytes"])
            curve.append(Glance(step + 1, time.perf_counter() - begun, sent, loss))
    parameters = sum(parameter.numel() for parameter in model.parameters())
    dense = int(workers.ledger.summary()["dense_fp32_bytes"]) * max(1, setting.every)
    return AdaptiveRun(setting, parameters, corpus.tokens, dense, tuple(curve))


def _between_looks(setting: AdaptiveSetting) -> int:
    """Steps from look to look: with outer steps, whole windows, since workers are at one point then."""
    window = max(1, setting.every)
    return window * math.ceil(max(1, setting.steps // LOOKS) / window)


def _optimizer(model: Transformer, setting: AdaptiveSetting) -> torch.optim.Optimizer:
    """With decay for matrices alone."""
    if setting.optimizer == MUON:
        return _muon(model, setting.rate)
    groups = [
        {"params": [p for p in model.parameters() if p.ndim > 1], "weight_decay": WEIGHT_DECAY},
        {"params": [p for p in model.parameters() if p.ndim < 2], "weight_decay": 0.0},
    ]
    if setting.optimizer == ADAM:
        return torch.optim.AdamW(groups, lr=setting.rate, betas=BETAS)
    return torch.optim.SGD(groups, lr=setting.rate)


def _muon(model: Transformer, rate: float) -> UpdateOptimizer:
    """Orthogonal steps for the matrices between the ends, signs for the embeddings and for vectors."""
    inner = [p for p in model.blocks.parameters() if p.ndim > 1]
    outer = [model.embed.weight, model.position]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    groups = [
        {"params": inner, "weight_decay": WEIGHT_DECAY},
        {"params": outer, "weight_decay": WEIGHT_DECAY, "update": Sign(), "share": SIGNS},
        {"params": vectors, "update": Sign(), "share": SIGNS},
    ]
    return UpdateOptimizer(groups, NewtonSchulz(), rate)


def _set_rate_(optimizer: torch.optim.Optimizer, rate: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = rate * group.get("share", 1.0)


class _Together:
    """All workers at one point: their gradients are exchanged, and one optimizer steps.

    AdamW's gradient is clipped, as is usual; a rule with an Adam of its own clips by itself.
    """

    def __init__(self, model: Transformer, setting: AdaptiveSetting, device: torch.device) -> None:
        scale = SCALES[setting.scale]
        self._model, self._optimizer = model, _optimizer(model, setting)
        self._clips = setting.optimizer == ADAM
        with warnings.catch_warnings(action="ignore", category=OptimizerWarning):  # what is warned of is measured here
            self._workers = Simulation(
                dict(model.named_parameters()), setting.rule, scale.workers, optimizer=self._optimizer
            )
        self._squares = Need.MOMENTS in self._workers.needs
        self._passes = _Passes(model, (scale.batch, scale.context), device, squares=self._squares)

    @property
    def ledger(self) -> Ledger:
        return self._workers.ledger

    def set_rate_(self, rate: float) -> None:
        _set_rate_(self._optimizer, rate)

    def step(self, batches: Sequence[Windows]) -> None:
        found = [self._passes.of(*batch) for batch in batches]
        moments = [one.moment for one in found] if self._squares else None
        result = self._workers.exchange([one.gradient for one in found], moments=moments, terms=len(batches[0][0]))
        for name, parameter in self._workers.parameters.items():
            parameter.grad = result[name]
        if self._clips:
            torch.nn.utils.clip_grad_norm_(self._model.parameters(), CLIP)
        with self._workers.moving():
            self._optimizer.step()


class _Apart:
    """Each worker trains a model of its own; how far they moved is exchanged every so many steps."""

    def __init__(self, model: Transformer, setting: AdaptiveSetting, device: torch.device) -> None:
        scale = SCALES[setting.scale]
        self._models = [model, *(copy.deepcopy(model) for _ in range(scale.workers - 1))]
        self._optimizers = [_optimizer(one, setting) for one in self._models]
        self._passes = [_Passes(one, (scale.batch, scale.context), device) for one in self._models]
        self._workers = OuterSimulation(
            [dict(one.named_parameters()) for one in self._models],
            setting.rule,
            setting.every,
            lr=setting.outer_rate,
            momentum=setting.outer_momentum,
        )

    @property
    def ledger(self) -> Ledger:
        return self._workers.ledger

    def set_rate_(self, rate: float) -> None:
        for optimizer in self._optimizers:
            _set_rate_(optimizer, rate)

    def step(self, batches: Sequence[Windows]) -> None:
        for model, optimizer, passes, batch in zip(self._models, self._optimizers, self._passes, batches, strict=True):
            gradient = passes.of(*batch).gradient
            for name, parameter in model.named_parameters():
                parameter.grad = gradient[name]
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
        self._workers.step()


class _Passed(NamedTuple):
    """What one worker computed, by the parameters' names."""

    gradient: dict[str, Tensor]
    moment: dict[str, Tensor]
    """q = sum_z c_z^2 over the windows' shares c_z of the gradient; empty where nobody asks for it."""


class _Passes:
    """A worker's forward and backward pass: on a GPU a graph that is replayed, for it is all launches otherwise.

    With `squares` each window has a pass of its own, and its gradient is a term of the second moment: tied embeddings
    have no per-sample gradients that could be had from one pass.
    """

    def __init__(self, model: Transformer, shape: Sequence[int], device: torch.device, *, squares: bool = False):
        self._model, self._named, self._squares = model, dict(model.named_parameters()), squares
        self._inputs, self._targets = (torch.zeros(*shape, dtype=torch.long, device=device) for _ in range(2))
        self._graph: torch.cuda.CUDAGraph | None = None
        if device.type == "cuda":
            self._capture()

    def _capture(self) -> None:
        side: torch.cuda.Stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self._pass()
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._found = self._pass()

    def _pass(self) -> list[Tensor]:
        """The gradient's parts, and behind them those of the second moment if it is wanted."""
        if not self._squares:
            return self._gradient(self._inputs, self._targets)
        count = len(self._inputs)
        windows = zip(torch.split(self._inputs, 1), torch.split(self._targets, 1), strict=True)
        shares = [torch.stack(each) / count for each in zip(*(self._gradient(*one) for one in windows), strict=True)]
        return [share.sum(0) for share in shares] + [share.square().sum(0) for share in shares]

    def _gradient(self, inputs: Tensor, targets: Tensor) -> list[Tensor]:
        return [*torch.autograd.grad(self._model.loss(inputs, targets), list(self._named.values()))]

    def of(self, inputs: Tensor, targets: Tensor) -> _Passed:
        """Of one worker's windows."""
        self._inputs.copy_(inputs)
        self._targets.copy_(targets)
        if self._graph is None:
            found = self._pass()
        else:
            self._graph.replay()
            found = [part.clone() for part in self._found]
        count = len(self._named)
        return _Passed(dict(zip(self._named, found, strict=False)), dict(zip(self._named, found[count:], strict=False)))
