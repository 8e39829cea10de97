"""The settings: what each figure of the Mem-SGD paper compares, at the paper's step sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from thinwire import QSGD, Identity, MemSGD, Plain, RandK, TopK, parse
from thinwire.errors import ConfigError
from thinwire.problems.datasets import BREAST_CANCER, data_folder, held, stem

if TYPE_CHECKING:  # the engine needs numba, settings do not
    from thinwire.papers.memsgd.unit_rows import UnitRowProblem

SGD = "plain(identity())"
INITIAL = (0.1, 1.0, 10.0, 100.0)
"""γ₀ that each method of the bits figure is tried with (the paper: on 1 % of the samples; here on all)."""
QUICK_INITIAL = (1.0, 10.0)
FIGURES = ("theory", "bits", "cores", "memories")
MEMORIES = (1, 2, 4, 8, 16, 24)
FAMILIES: dict[type, str] = {Identity: "SGD", TopK: "top", RandK: "rand", QSGD: "QSGD"}
PAPER_CORES = (1, 2, 3, 5, 8, 10, 12, 15, 18, 20, 24)
GENERATED, REUTERS = "generated", "reuters21578_tfidf"
"""The first is made up in memory, in the shape of epsilon; `generated-5000` has 5,000 rows."""


@dataclass(frozen=True)
class Extent:
    """How much is run where nothing else is asked for."""

    figures: tuple[str, ...]
    samples: int
    """Rows of the generated set."""
    repeats: int
    """Of timed runs."""
    most: int | None
    """Steps of a run at most."""


WHOLE = Extent(FIGURES, samples=20_000, repeats=3, most=None)
QUICK = Extent(("theory", "bits", "cores"), samples=4_000, repeats=1, most=60_000)


@lru_cache(maxsize=64)
def parsed(rule: str) -> MemSGD | Plain:
    """The rule of a setting: with a memory or without."""
    found = parse(rule)
    assert isinstance(found, MemSGD | Plain)
    return found


@dataclass(frozen=True)
class MemSGDSetting:
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
    delay: bool = True
    """Whether theory's step sizes are shifted by as much as theory asks, and not by 1 or 10 alone."""

    @property
    def compressor(self) -> Any:
        return parsed(self.rule).compressor

    @property
    def remembers(self) -> bool:
        """Whether what is not sent is kept; of SGD and QSGD, which send everything, nothing is."""
        return isinstance(parsed(self.rule), MemSGD)

    @property
    def family(self) -> str:
        """What the paper calls the method, whatever k or the number of bits."""
        return FAMILIES[type(self.compressor)]

    @property
    def as_theory_has_it(self) -> bool:
        """With the delay, and with a memory where not everything is sent."""
        return self.delay and (self.remembers or self.family in ("SGD", "QSGD"))

    def without(self, what: str) -> tuple[Any, bool, bool]:
        """The identity of the run that differs from this in its "memory" or its "delay" alone."""
        return self.compressor, self.remembers and what != "memory", self.delay and what != "delay"

    @property
    def identity(self) -> tuple[Any, bool, bool]:
        return self.without("")

    @property
    def group(self) -> tuple[str, str]:
        """Runs of one figure on one data set stand in one table."""
        return self.figure, self.dataset

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
    def of(problem: UnitRowProblem, most: int | None = None) -> Scale:
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


def theory(scale: Scale) -> Iterator[MemSGDSetting]:
    """Figure 2: η_t = 2/(λ(t + a)) with a = d/k (dense) or 10 d/k (sparse), and with a = 1 or 10: no delay."""
    counts = [scale.k(count) for count in ((10, 20, 30) if scale.sparse else (1, 2, 3))]
    first, factor = counts[0], 10 if scale.sparse else 1
    epochs = scale.epochs(5 if scale.sparse else 3, first)

    def pair(label: str, rule: str, k: int) -> Iterator[MemSGDSetting]:
        with_delay = MemSGDSetting("theory", scale.dataset, label, rule, factor * scale.d / k, epochs)
        yield with_delay
        yield replace(with_delay, label=f"{label}, no delay", size=float(factor), delay=False)

    def forgetful(label: str, rule: str) -> MemSGDSetting:
        return MemSGDSetting("theory", scale.dataset, f"{label}, no memory", rule, factor * scale.d / first, epochs)

    yield from pair("SGD", SGD, first)
    yield from pair(f"top-{first}", top(first), first)
    yield forgetful(f"top-{first}", f"plain(topk(count={first}))")
    for k in dict.fromkeys(counts):
        yield from pair(f"rand-{k}", rand(k), k)
    yield forgetful(f"rand-{first}", f"plain(randk(count={first}))")


def bits(scale: Scale) -> Iterator[MemSGDSetting]:
    """Figure 3: Mem-SGD, SGD and QSGD with s = 2^b levels, each with Bottou's steps at several γ₀."""
    epochs = scale.epochs(10, scale.k(10) if scale.sparse else 1)
    ten = scale.k(10)
    more = {f"top-{ten}": top(ten), f"rand-{ten}": rand(ten)} if scale.sparse else {}
    quantised = {f"QSGD {b} bit": f"plain(qsgd({2**b}, {scale.d}))" for b in (8, 4, 2)}
    for label, rule in ({"SGD": SGD, "top-1": top(1), "rand-1": rand(1)} | more | quantised).items():
        for initial in INITIAL if scale.most is None else QUICK_INITIAL:
            if initial < scale.samples:  # η λ < 1, for the decay beside the memory
                yield MemSGDSetting("bits", scale.dataset, label, rule, initial, epochs)


def cores(scale: Scale, threads: Sequence[int], repeats: int) -> Iterator[MemSGDSetting]:
    """Figure 4: time to a loss with 1 … W threads, of lock-free SGD, rand-k and top-k, k = 10 (dense) or 50."""
    k = scale.k(50 if scale.sparse else 10)
    epochs = scale.epochs(5 if scale.sparse else 10, k)
    for seed in range(repeats):  # a slow moment of the machine then falls on all methods
        for label, rule in {"SGD": SGD, f"rand-{k}": rand(k), f"top-{k}": top(k)}.items():
            for count in threads:
                yield MemSGDSetting("cores", scale.dataset, label, rule, 1.0, epochs, threads=count, seed=seed)


def memories(scale: Scale) -> Iterator[MemSGDSetting]:
    """What many workers' own memories cost: W of them served in turn by one thread, with figure 4's step sizes."""
    k = scale.k(50 if scale.sparse else 10)
    epochs = scale.epochs(5 if scale.sparse else 10, k)
    for label, rule in {f"top-{k}": top(k), f"rand-{k}": rand(k), "top-1": top(1)}.items():
        for count in MEMORIES:
            yield MemSGDSetting("memories", scale.dataset, label, rule, 1.0, epochs, memories=count)


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
) -> list[MemSGDSetting]:
    """Every figure for every data set; `epochs` instead of the paper's."""
    check(figures, threads, repeats, epochs)
    makers: dict[str, Callable[[Scale], Iterator[MemSGDSetting]]] = {
        "theory": theory,
        "bits": bits,
        "cores": lambda scale: cores(scale, threads, repeats),
        "memories": memories,
    }
    wanted = [setting for figure in figures for scale in scales for setting in makers[figure](scale)]
    return wanted if epochs is None else [replace(setting, epochs=epochs) for setting in wanted]


def datasets(named: str | None, data: str | None, samples: int) -> list[str]:
    """Those that are named; else the file that `data` is; else the generated set beside Reuters, where there is any."""
    made_up, folder = f"{GENERATED}-{samples}", data_folder(data)
    if named is not None:
        return [made_up if name.strip() == GENERATED else name.strip() for name in named.split(",")]
    if folder is not None and folder.is_file():
        return [stem(folder)]  # never a path: records and pages are passed on
    return [made_up, REUTERS if folder is not None and REUTERS in held(folder) else BREAST_CANCER]


def thread_counts(cores: int) -> list[int]:
    """The paper's numbers of cores, up to those of a machine."""
    return sorted({count for count in (*PAPER_CORES, cores) if count <= cores})
