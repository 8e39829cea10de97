"""The settings: what each figure of the Mem-SGD paper compares, at the paper's step sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from thinwire.errors import ConfigError

if TYPE_CHECKING:
    from thinwire.papers.memsgd.data import Problem

SGD = "plain(identity())"
INITIAL = (0.1, 1.0, 10.0, 100.0)
"""γ₀ that each method of the bits figure is tried with (the paper: on 1 % of the samples; here on all)."""
SAMPLES, REPEATS = 20_000, 3
QUICK_FIGURES = ("theory", "bits", "cores")
QUICK_INITIAL, QUICK_STEPS, QUICK_SAMPLES, QUICK_REPEATS = (1.0, 10.0), 60_000, 4_000, 1
MEMORIES = (1, 2, 4, 8, 16, 24)


@dataclass(frozen=True)
class Setting:
    """One run."""

    figure: str
    dataset: str
    label: str
    rule: str
    """As thinwire writes it."""
    size: float
    """The shift a of theory's step sizes, or γ₀ of Bottou's."""
    epochs: int
    threads: int = 1
    memories: int = 1
    """Of simulated workers that one thread serves in turn."""
    seed: int = 0

    @property
    def title(self) -> str:
        return f"{self.figure}: {self.dataset} · {self.label}"


@dataclass(frozen=True)
class Scale:
    """How large the paper's numbers are for one kind of data, and what a run may take."""

    dataset: str
    samples: int
    d: int
    sparse: bool
    most: int | None
    """Steps of a run at most."""

    @staticmethod
    def of(problem: Problem, most: int | None = None) -> Scale:
        samples = problem.samples
        return Scale(problem.name, len(samples), samples.d, not samples.dense, most)

    def k(self, count: int) -> int:
        """Of these coordinates, as many as there are."""
        return min(count, self.d)

    def epochs(self, least: int, k: int) -> int:
        """The paper's, and as many as make (d/k)√κ steps with κ = n/4, after which theory's second term fades.

        With the paper's own data that is never more than the paper's: epsilon, top-1, 1.6 epochs; RCV1, top-10, 2.9.
        """
        steps = self.d / k * math.sqrt(self.samples / 4)
        wanted = max(least, math.ceil(steps / self.samples))
        return wanted if self.most is None else max(1, min(wanted, self.most // self.samples))


def top(k: int) -> str:
    return f"memsgd(topk(count={k}))"


def rand(k: int) -> str:
    return f"memsgd(randk(count={k}))"


def theory(scale: Scale) -> Iterator[Setting]:
    """Figure 2: η_t = 2/(λ(t + a)) with a = d/k (dense) or 10 d/k (sparse), and with a = 1 or 10: no delay."""
    counts = [scale.k(count) for count in ((10, 20, 30) if scale.sparse else (1, 2, 3))]
    first, factor = counts[0], 10 if scale.sparse else 1
    epochs = scale.epochs(5 if scale.sparse else 3, first)

    def pair(label: str, rule: str, k: int) -> Iterator[Setting]:
        with_delay = Setting("theory", scale.dataset, label, rule, factor * scale.d / k, epochs)
        yield with_delay
        yield replace(with_delay, label=f"{label}, no delay", size=float(factor))

    def forgetful(label: str, rule: str) -> Setting:
        return Setting("theory", scale.dataset, f"{label}, no memory", rule, factor * scale.d / first, epochs)

    yield from pair("SGD", SGD, first)
    yield from pair(f"top-{first}", top(first), first)
    yield forgetful(f"top-{first}", f"plain(topk(count={first}))")
    for k in dict.fromkeys(counts):
        yield from pair(f"rand-{k}", rand(k), k)
    yield forgetful(f"rand-{first}", f"plain(randk(count={first}))")


def bits(scale: Scale) -> Iterator[Setting]:
    """Figure 3: Mem-SGD, SGD and QSGD with s = 2^b levels, each with Bottou's steps at several γ₀."""
    epochs = scale.epochs(10, scale.k(10) if scale.sparse else 1)
    ten = scale.k(10)
    more = {f"top-{ten}": top(ten), f"rand-{ten}": rand(ten)} if scale.sparse else {}
    quantised = {f"QSGD {b} bit": f"plain(qsgd({2**b}, {scale.d}))" for b in (8, 4, 2)}
    for label, rule in ({"SGD": SGD, "top-1": top(1), "rand-1": rand(1)} | more | quantised).items():
        for initial in INITIAL if scale.most is None else QUICK_INITIAL:
            if initial < scale.samples:  # η λ < 1, for the decay beside the memory
                yield Setting("bits", scale.dataset, label, rule, initial, epochs)


def cores(scale: Scale, threads: Sequence[int], repeats: int) -> Iterator[Setting]:
    """Figure 4: time to a loss with 1 … W threads, of lock-free SGD, rand-k and top-k, k = 10 (dense) or 50."""
    k = scale.k(50 if scale.sparse else 10)
    epochs = scale.epochs(5 if scale.sparse else 10, k)
    for seed in range(repeats):  # a slow moment of the machine then falls on all methods
        for label, rule in {"SGD": SGD, f"rand-{k}": rand(k), f"top-{k}": top(k)}.items():
            for count in threads:
                yield Setting("cores", scale.dataset, label, rule, 1.0, epochs, threads=count, seed=seed)


def memories(scale: Scale) -> Iterator[Setting]:
    """What many workers' own memories cost: W of them served in turn by one thread, with figure 4's step sizes."""
    k = scale.k(50 if scale.sparse else 10)
    epochs = scale.epochs(5 if scale.sparse else 10, k)
    for label, rule in {f"top-{k}": top(k), f"rand-{k}": rand(k), "top-1": top(1)}.items():
        for count in MEMORIES:
            yield Setting("memories", scale.dataset, label, rule, 1.0, epochs, memories=count)


FIGURES = ("theory", "bits", "cores", "memories")


def check(figures: Sequence[str], threads: Sequence[int], repeats: int, epochs: int | None) -> None:
    """Refuse what `settings` would, before any data are loaded."""
    for figure in figures:
        if figure not in FIGURES:
            raise ConfigError(f"unknown figure {figure!r}; the figures are {', '.join(FIGURES)}")
    for name, least in (("threads", min(threads)), ("repeats", repeats), ("epochs", 1 if epochs is None else epochs)):
        if least < 1:
            raise ConfigError(f"{name} must be at least 1, got {least}")


def settings(
    scales: Sequence[Scale], figures: Sequence[str], threads: Sequence[int], repeats: int, epochs: int | None = None
) -> list[Setting]:
    """Every figure for every data set; `epochs` instead of the paper's."""
    check(figures, threads, repeats, epochs)
    makers: dict[str, Callable[[Scale], Iterator[Setting]]] = {
        "theory": theory,
        "bits": bits,
        "cores": lambda scale: cores(scale, threads, repeats),
        "memories": memories,
    }
    wanted = [setting for figure in figures for scale in scales for setting in makers[figure](scale)]
    return wanted if epochs is None else [replace(setting, epochs=epochs) for setting in wanted]
