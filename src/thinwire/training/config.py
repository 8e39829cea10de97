"""The configuration of a run, checked when built; of a comparison's runs; and of the demo's."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from thinwire.errors import ConfigError, SpecError, UnknownName
from thinwire.feedback import Auto, Feedback, Rule
from thinwire.link import show_rate
from thinwire.spec import method_from
from thinwire.training.tasks import check_task

ENGINES = ("ddp", "sim")
DEVICES = ("cpu", "cuda")
MAX_WORKERS = 256


@dataclasses.dataclass(frozen=True)
class TorchMethod:
    """A way of averaging gradients that torch itself brings along, trained beside our rules as the thing to beat."""

    name: str
    about: str
    dtype: torch.dtype = torch.float32
    """Of the numbers that travel."""
    simulated: bool = True


TORCH_METHODS: dict[str, TorchMethod] = {
    method.name: method
    for method in (
        TorchMethod("dense", "plain DDP: float32 ring all-reduce"),
        TorchMethod("fp16", "torch's fp16_compress_hook: float16 ring all-reduce", torch.float16),
        TorchMethod("powersgd", "torch's PowerSGD hook, rank 1, one bucket (--engine ddp only)", simulated=False),
    )
}


def canonical_method(text: str) -> str:
    """The one spelling of a method: the name of one of torch's, or the rule's own text.

    >>> canonical_method(" memsgd( topk(0.010) )"), canonical_method("dense")
    ('memsgd(topk(0.01))', 'dense')
    """
    bare = text.strip()
    if bare in TORCH_METHODS:
        return bare
    try:
        return str(method_from(text))
    except SpecError as error:
        if bare.isidentifier():
            problem = f"{error.problem}; torch's own are {', '.join(TORCH_METHODS)}"
            raise SpecError(error.text, error.column, problem) from None
        raise


def is_auto(method: str) -> bool:
    """Whether it chooses for itself how buckets travel."""
    return method not in TORCH_METHODS and isinstance(method_from(method), Auto)


def rule_in(method: str) -> Rule | None:
    """The rule by which a method compresses: `auto`'s own, where it has one; None of torch's methods.

    >>> str(rule_in("auto(memsgd(topk(0.01)))")), rule_in("auto"), rule_in("dense")
    ('memsgd(topk(0.01))', None, None)
    """
    if method in TORCH_METHODS:
        return None
    named = method_from(method)
    return named.rule if isinstance(named, Auto) else named


def brings_momentum(method: str) -> bool:
    """Whether a method applies momentum, or all of Adam, on the workers: the optimizer beside it is plain SGD.

    >>> brings_momentum("dgc(topk(0.001))"), brings_momentum("memsgd(topk(0.01))"), brings_momentum("dense")
    (True, False, False)
    """
    rule = rule_in(method)
    return isinstance(rule, Feedback) and rule.has_momentum


def _own_optimizer(method: str) -> dict[str, Any]:
    return {"optimizer": "sgd"} if brings_momentum(method) else {}


def _beside(method: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings as a rule with its own momentum m takes them over from momentum SGD.

    There weight decay passes through the momentum too, which moves a parameter 1 / (1 - m) times as far.
    """
    own = dict(settings) | _own_optimizer(method)
    decay = settings.get("weight_decay")
    if brings_momentum(method) and settings.get("optimizer") == "momentum" and decay:
        own["weight_decay"] = decay / (1 - getattr(rule_in(method), "momentum", 0.0))
    return own


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """One training run: everything that decides its numbers. `batch` counts the samples of one worker's step."""

    task: str
    method: str
    workers: int
    engine: str
    steps: int
    batch: int
    lr: float
    optimizer: str
    schedule: str
    seed: int = 0
    data: str | None = None
    evaluations: int = 10
    weight_decay: float = 0.0
    device: str = "cpu"
    every: int = 0
    """Steps between two exchanges of how far parameters moved (`attach_outer`); 0: gradients, at every step."""
    rate: float | None = None
    """Bits a second of the emulated link that joins each worker to the others; None: as they are on this machine."""

    @classmethod
    def of(cls, task: str, method: str | None = None, **given: Any) -> RunConfig:
        """A configuration with the task's defaults for everything that is not given (or given as None).

        A rule that brings its own momentum or Adam takes plain SGD in place of the task's optimizer.

        >>> RunConfig.of("text").method, RunConfig.of("text").optimizer, RunConfig.of("text", "dense").optimizer
        ('memadam(topk(0.01, values=power4))', 'sgd', 'adam')
        """
        defaults = dataclasses.asdict(check_task(task).defaults)
        chosen = {name: value for name, value in given.items() if value is not None}
        wanted = canonical_method(method or defaults["method"])
        common = {"workers": 4, "engine": "ddp"}
        return cls(**{**common, **defaults, **_own_optimizer(wanted), **chosen, "task": task, "method": wanted})

    def __post_init__(self) -> None:
        check_task(self.task, self.data)
        object.__setattr__(self, "method", canonical_method(self.method))
        _check_choice("engine", self.engine, ENGINES)
        _check_choice("optimizer", self.optimizer, OPTIMIZERS)
        _check_choice("schedule", self.schedule, SCHEDULES)
        _check_choice("device", self.device, DEVICES)
        _check_range("workers", self.workers, 1, MAX_WORKERS)
        for name in ("steps", "batch", "evaluations"):
            _check_range(name, getattr(self, name), 1, 10**9)
        _check_range("seed", self.seed, 0, 2**31 - 1)
        self._check_every()
        self._check_rate()
        if not (isinstance(self.lr, int | float) and math.isfinite(self.lr) and self.lr > 0):
            usual = check_task(self.task).defaults.lr
            raise ConfigError(f"lr must be a finite number above 0, got {self.lr}; try {usual}")
        if not (math.isfinite(self.weight_decay) and self.weight_decay >= 0):
            raise ConfigError(f"weight_decay must be a finite number of at least 0, got {self.weight_decay}")
        if self.engine == "ddp" and self.device != "cpu":
            raise ConfigError(f"real processes train on the CPU here, got device {self.device}; use --engine sim")
        if self.engine == "sim" and self.method in TORCH_METHODS and not TORCH_METHODS[self.method].simulated:
            raise ConfigError(f"{self.method!r} is torch's own hook and cannot be simulated; use --engine ddp")
        self._check_auto()

    def _check_auto(self) -> None:
        if not is_auto(self.method):
            return
        if self.engine == "sim":
            raise ConfigError(f"{self.method!r} chooses by the wire, and simulated workers have none; use --engine ddp")
        if self.every:
            raise ConfigError(
                f"outer steps (every={self.every}) take a rule, and {self.method!r} chooses at every step"
            )

    def _check_every(self) -> None:
        _check_range("every", self.every, 0, 10**9)
        if self.every and self.engine != "ddp":
            raise ConfigError(f"outer steps (every={self.every}) are trained by real processes; use --engine ddp")
        if self.every and self.method in TORCH_METHODS:
            words = "its dense form is 'plain(identity())'"
            raise ConfigError(f"outer steps (every={self.every}) take a rule, not torch's {self.method!r}; {words}")

    def _check_rate(self) -> None:
        if self.rate is None:
            return
        if not (math.isfinite(self.rate) and self.rate > 0):
            raise ConfigError(f"the rate of an emulated link must be above 0 bits a second, got {self.rate}; try 1e8")
        if self.engine != "ddp":
            raise ConfigError(
                f"a link of {show_rate(self.rate)} joins real processes; simulated workers share one, which no wire "
                "slows down: use --engine ddp, or leave --rate out"
            )

    @classmethod
    def recorded(cls, plain: Mapping[str, Any]) -> RunConfig:
        """A configuration as a record has it; a method of a user's own, not known here, is left as its text."""
        try:
            return cls(**plain)
        except UnknownName:
            config = cls(**{**plain, "method": "dense"})
            object.__setattr__(config, "method", plain["method"])
            return config

    def asdict(self) -> dict[str, Any]:
        """The configuration as plain values; `RunConfig(**plain)` is its inverse."""
        return dataclasses.asdict(self)


def _check_range(name: str, value: object, low: int, high: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise ConfigError(f"{name} must be a whole number from {low} to {high}, got {value}")


def _check_choice(name: str, value: str, choices: Collection[str]) -> None:
    if value not in choices:
        raise ConfigError(f"{name} must be one of {', '.join(choices)}, got {value!r}")


# -------------------------------------------------------------------------------------------------------- several runs


def comparison(
    task: str, methods: Sequence[str], seeds: Sequence[int], rates: Sequence[float] = (), **settings: Any
) -> list[RunConfig]:
    """Every method with every seed; `rates` holds no learning rate (the task's), one for all, or one a method.

    A rule that brings its own momentum or Adam takes plain SGD beside it, whatever optimizer the others have, and as
    much weight decay as theirs comes to.
    """
    if len(rates) not in (0, 1, len(methods)):
        raise ConfigError(f"--lr takes 1 rate or one for each of the {len(methods)} methods, got {len(rates)}")
    _check_distinct("seeds", seeds)
    each = list(rates) if len(rates) > 1 else [*rates, None][:1] * len(methods)
    configs = [
        RunConfig.of(task, method, lr=rate, seed=seed, **_beside(canonical_method(method), settings))
        for method, rate in zip(methods, each, strict=True)
        for seed in seeds
    ]
    _check_distinct("methods", configs)
    return configs


def _check_distinct(name: str, values: Sequence[object]) -> None:
    if len(set(values)) != len(values):
        raise ConfigError(f"the {name} must differ from each other: one is given twice; remove it")


DEMO_STEPS, DEMO_RATE = 120, "100mbit"
DEMO_METHODS = ("dense", "fp16", "powersgd", "memadam(topk(0.01, values=power4))")
DEMO_BARE, DEMO_BARE_STEPS = (DEMO_METHODS[0], DEMO_METHODS[1], DEMO_METHODS[3]), 40
"""Trained for so many steps without a link too: where nothing is to be saved."""
DEMO_EVALUATIONS = 12
DEMO_BATCH = 2
"""Two windows a worker and step: on two cores four workers compute them in some 30 ms, and float32 takes 188 ms on a
link of 100 Mbit/s."""
DEMO_LR = 3e-3
"""For all methods alike. In 120 simulated steps dense AdamW ended at 3.527 bits a byte, and at 6e-3 at 3.510; MemAdam
at 3.541 and 3.568. In 150 real ones at 2e-3 they came to 3.509 and 3.542."""
DEMO_OPTIMIZER: dict[str, Any] = {"optimizer": "adamw", "weight_decay": 0.01}


def demo_configs(
    workers: int, engine: str, steps: int, seeds: Sequence[int], rate: float | None = None
) -> list[RunConfig]:
    """The demo's runs: a small transformer under AdamW and what stands in its place, over a link and without one."""
    simulated = [method for method in DEMO_METHODS if method not in TORCH_METHODS or TORCH_METHODS[method].simulated]

    def runs(methods: Sequence[str], steps: int, evaluations: int, link: float | None) -> list[RunConfig]:
        settings: dict[str, Any] = {"workers": workers, "engine": engine, "steps": steps, "evaluations": evaluations}
        return comparison("text", methods, seeds, [DEMO_LR], batch=DEMO_BATCH, rate=link, **DEMO_OPTIMIZER, **settings)

    if rate is None:
        return runs(DEMO_METHODS if engine == "ddp" else simulated, steps, DEMO_EVALUATIONS, None)
    bare = runs(DEMO_BARE, min(steps, DEMO_BARE_STEPS), 1, None)
    return [*runs(DEMO_METHODS, steps, DEMO_EVALUATIONS, rate), *bare]


Parameters = Iterable[nn.Parameter]

OPTIMIZERS: dict[str, Callable[[Parameters, float, float], Optimizer]] = {
    "sgd": lambda parameters, lr, decay: torch.optim.SGD(parameters, lr=lr, weight_decay=decay),
    "momentum": lambda parameters, lr, decay: torch.optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=decay),
    "adam": lambda parameters, lr, decay: torch.optim.Adam(parameters, lr=lr, weight_decay=decay),
    "adamw": lambda parameters, lr, decay: torch.optim.AdamW(parameters, lr=lr, weight_decay=decay),
}
"""From parameters, learning rate and weight decay. It is added to the exchanged gradient (AdamW: taken off the
parameters), and so never travels."""

FLOOR = 0.01
"""Where the cosine ends, as a share of the first learning rate; never 0, since memory is kept in units of lr."""

SCHEDULES: dict[str, Callable[[float], float]] = {
    "constant": lambda progress: 1.0,
    "cosine": lambda progress: FLOOR + (1 - FLOOR) * (1 + math.cos(math.pi * progress)) / 2,
    "halving": lambda progress: 0.5 ** int(12 * progress),
    "decay": lambda progress: 1.0 if progress < 0.5 else 0.1 if progress < 0.75 else 0.01,
}
"""Factors on the learning rate as functions of the share of steps done, in [0, 1). VGC's paper halves it every
25 of 300 epochs: in 12 equal parts."""


def set_learning_rate_(optimizer: Optimizer, schedule: str, lr: float, step: int, steps: int) -> None:
    """Give every parameter group the learning rate of `step` out of `steps`."""
    for group in optimizer.param_groups:
        group["lr"] = lr * SCHEDULES[schedule](step / steps)
