"""The settings: what each figure of the papers compares, at the step sizes that they tuned."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from thinwire.errors import ConfigError
from thinwire.problems.datasets import BREAST_CANCER, data_folder, stem
from thinwire.theory.smoothness import DENSE_SIDE

WORKERS = 20
TOLERANCES = (1e-4, 1e-5, 1e-6, 1e-7)
"""Of ‖∇f(x)‖²."""
GAPS = (1e-1, 1e-2, 1e-3)
"""Of f(x) − f*, for least squares."""


@dataclass(frozen=True)
class EF21Setting:
    """One run: a method at a multiple of its theoretical step size."""

    figure: str
    dataset: str
    label: str
    rule: str
    """As thinwire writes it."""
    factor: float
    k: int
    """Numbers in a worker's message; 0 where it has all d."""
    rounds: int
    """At most."""
    problem: str = "logistic"
    workers: int = WORKERS
    batch: float = 1.0
    """The share of its samples that a worker takes in a round."""
    down: int | None = None
    """Numbers in what the server broadcasts, 0 where it has all d; None where that is not counted."""

    @property
    def group(self) -> tuple[str, str]:
        """Runs of one figure on one data set stand in one table."""
        return self.figure, self.dataset

    @property
    def title(self) -> str:
        return f"{self.figure}: {self.dataset} · {self.label}"

    def obstacle(self, rows: int, d: int) -> str | None:
        """Why data of this shape do not allow the run; None where they do."""
        if max(self.k, self.down or 0) > d:
            return f"a message of {max(self.k, self.down or 0)} numbers is more than the {d} that there are"
        if self.workers > rows:
            return f"{self.workers} workers share {rows} rows, and some would have none"
        if self.problem == "least-squares" and min(rows, d) > DENSE_SIDE:
            most = f"up to {DENSE_SIDE:,} rows or columns"
            return f"μ and f* of least squares are found {most}, these data have {rows:,} and {d:,}"
        return None

    @property
    def tolerances(self) -> tuple[float, ...]:
        return GAPS if self.problem == "least-squares" else TOLERANCES


Tuned = tuple[int, float]
"""k and the multiple of theory."""
POSTER: dict[str, dict[str, Tuned]] = {
    "phishing": {"EF21": (1, 16), "EF": (1, 16), "EF21+": (1, 256), "GD": (0, 1)},
    "mushrooms": {"EF21": (2, 1024), "EF": (2, 64), "EF21+": (1, 4096), "GD": (0, 4)},
    "a9a": {"EF21": (4, 64), "EF": (4, 64), "EF21+": (1, 2048), "GD": (0, 2)},
    "w8a": {"EF21": (1, 64), "EF": (1, 32), "EF21+": (1, 2048), "GD": (0, 4)},
}
"""The best settings by the paper's poster."""
OTHER: dict[str, Tuned] = {"EF21": (1, 128), "EF": (1, 64), "EF21+": (1, 512), "GD": (0, 1)}
"""For data that the paper does not have: tuned on scikit-learn's breast cancer data."""
POSTER_SQUARES: dict[str, dict[str, Tuned]] = {
    "a9a": {"EF21": (1, 4096), "EF": (1, 4096), "EF21+": (1, 4096), "GD": (0, 1)},
    "w8a": {"EF21": (1, 1024), "EF": (1, 8192), "EF21+": (1, 8192), "GD": (0, 2)},
}
OTHER_SQUARES: dict[str, Tuned] = {"EF21": (1, 64), "EF": (1, 64), "EF21+": (1, 256), "GD": (0, 1)}

RULES = {"EF21": "ef21(topk(count={k}))", "EF": "memsgd(topk(count={k}))", "EF21+": "ef21plus(topk(count={k}))"}
ROUNDS = 6000
QUICK_ROUNDS, QUICK_FIGURES = 1000, ("tuned", "tolerance")


def _run(figure: str, dataset: str, method: str, k: int, factor: float, rounds: int, **more: Any) -> EF21Setting:
    rule = RULES[method].format(k=k) if k else "identity()"
    label = f"{method} {f'k={k}, ' if k else ''}{factor:g}×"
    return EF21Setting(figure, dataset, label, rule, factor, k, rounds, **more)


def tuned(dataset: str, rounds: int) -> Iterator[EF21Setting]:
    """EF, EF21, EF21+ and gradient descent at their best."""
    for method, (k, factor) in POSTER.get(dataset, OTHER).items():
        yield _run("tuned", dataset, method, k, factor, rounds)


def tolerance(dataset: str, rounds: int) -> Iterator[EF21Setting]:
    """Ever larger steps with top-1: EF's floor rises, EF21 goes on far beyond theory, EF21+ farthest."""
    for method, factors in {
        "EF": (1, 8, 16, 32, 64, 128, 256),
        "EF21": (1, 8, 16, 32, 64, 128, 256),
        "EF21+": (64, 512, 2048, 4096),
    }.items():
        for factor in factors:
            yield _run("tolerance", dataset, method, 1, factor, min(rounds, 2500))


def effect_of_k(dataset: str, rounds: int) -> Iterator[EF21Setting]:
    """EF21 with more numbers a message, at one multiple of theory."""
    factor = POSTER.get(dataset, OTHER)["EF21"][1]
    for k in (1, 2, 4, 8, 16, 32):
        yield _run("k", dataset, "EF21", k, factor, min(rounds, 3000))


def squares(dataset: str, rounds: int) -> Iterator[EF21Setting]:
    """Least squares, which satisfies the PL inequality."""
    for method, (k, factor) in POSTER_SQUARES.get(dataset, OTHER_SQUARES).items():
        yield _run("pl", dataset, method, k, factor, rounds, problem="least-squares")


def participation(dataset: str, rounds: int) -> Iterator[EF21Setting]:
    """EF21-PP with 100 workers and top-2, at the multiples that were tuned on w8a."""
    for share, factor in ((1.0, 64), (0.5, 64), (0.25, 32), (0.125, 16)):
        rule = f"ef21pp(topk(count=2), {share})" if share < 1 else "ef21(topk(count=2))"
        label = f"{share:.1%} of the workers, {factor}×".replace(".0%", "%")
        yield EF21Setting("participation", dataset, label, rule, factor, 2, min(rounds, 3000), workers=100)


def bidirectional(dataset: str, rounds: int) -> Iterator[EF21Setting]:
    """Top-2 up and top-k down: EF21-BC, whose server compresses g, and EF21-P, whose server compresses the model."""
    yield _run("bidirectional", dataset, "EF21", 2, 64, min(rounds, 3000), down=0)
    for name, form, factors in (
        ("EF21-BC", "ef21bc(topk(count=2), topk(count={}))", (32, 64, 64)),
        ("EF21-P", "ef21p(ef21(topk(count=2)), topk(count={}))", (16, 32, 32)),
    ):
        for down, factor in zip((2, 4, 16), factors, strict=True):
            label = f"{name} 2 up, {down} down, {factor}×"
            yield EF21Setting(
                "bidirectional", dataset, label, form.format(down), factor, 2, min(rounds, 3000), down=down
            )


def momentum(dataset: str, rounds: int) -> Iterator[EF21Setting]:
    """Heavy ball after the exchange."""
    factor = POSTER.get(dataset, OTHER)["EF21"][1]
    for eta in (0.0, 0.2, 0.4, 0.9):
        scale = factor * (1 - eta)
        yield EF21Setting(
            "momentum", dataset, f"η={eta:g}, {scale:g}×", f"ef21hb(topk(count=1), eta={eta})", scale, 1,
            min(rounds, 3000),
        )  # fmt: skip


def stochastic(dataset: str, rounds: int) -> Iterator[EF21Setting]:
    """Mini-batches of 1.5 %: EF21's floor, its removal by momentum and by PAGE."""
    batch = 0.015
    for label, rule in (
        ("EF21-SGD", "ef21(topk(count=1))"),
        ("EF21-SGDM η=0.1", "ef21sgdm(topk(count=1), eta=0.1)"),
        ("EF21-SGD2M η=0.1", "ef21sgd2m(topk(count=1), eta=0.1)"),
        ("EF21-PAGE", f"ef21page(topk(count=1), {batch / (1 + batch):.6f})"),
    ):
        yield EF21Setting("stochastic", dataset, f"{label}, 32×", rule, 32, 1, min(rounds, 3000), batch=batch)


FIGURES: dict[str, Callable[[str, int], Iterator[EF21Setting]]] = {
    "tuned": tuned,
    "tolerance": tolerance,
    "k": effect_of_k,
    "pl": squares,
    "participation": participation,
    "bidirectional": bidirectional,
    "momentum": momentum,
    "stochastic": stochastic,
}


def settings(datasets: Sequence[str], figures: Sequence[str], rounds: int) -> list[EF21Setting]:
    """Every figure for every data set."""
    for figure in figures:
        if figure not in FIGURES:
            raise ConfigError(f"unknown figure {figure!r}; the figures are {', '.join(FIGURES)}")
    if rounds < 1:
        raise ConfigError(f"rounds must be at least 1, got {rounds}")
    return [setting for figure in figures for dataset in datasets for setting in FIGURES[figure](dataset, rounds)]


def possible(
    everything: Sequence[EF21Setting], shapes: Mapping[str, tuple[int, int]]
) -> tuple[list[EF21Setting], list[str]]:
    """The runs that data of these shapes allow, and a sentence for each figure that they do not allow at all."""
    wanted = [one for one in everything if one.obstacle(*shapes[one.dataset]) is None]
    left_out = {one.group: one for one in reversed(everything)}
    for one in wanted:
        left_out.pop(one.group, None)
    return wanted, [
        f"figure {one.figure} of {one.dataset} cannot be run: {one.obstacle(*shapes[one.dataset])}"
        for one in reversed(left_out.values())
    ]


def default_datasets(data: str | None) -> list[str]:
    """Where none is named: the file that `data` is, two sets of the folder, or what scikit-learn has."""
    folder = data_folder(data)
    if folder is not None and folder.is_file():
        return [stem(folder)]
    return ["phishing", "a9a"] if folder else [BREAST_CANCER]
