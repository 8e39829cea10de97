"""Second moments of per-sample gradients: what they cost beside forward + backward = 1, ours and other packages'.

Each contender gives the same q, which is compared with ours first. The table holds medians over the turns of (time /
time of plain forward + backward in the same turn). Before each timed step comes one that is not timed, for some
contenders leave the memory in disorder. BackPACK and Opacus refuse batch norm in training mode, so the VGG-like net
comes with and without it.

On a GPU these networks are small enough that the host, which launches the kernels, takes longer than the GPU. So both
are also captured as a CUDA graph, which the host launches at once; its ratio is to the captured forward + backward.

The floor for the MLP is one matrix product more for each layer beside its three (the first layer has two): 15/11.
"""

from __future__ import annotations

import statistics
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from thinwire.bench.grid import Measured, grid
from thinwire.bench.timing import in_turns, wall_clock
from thinwire.errors import ConfigError
from thinwire.moments import watch

Squares = dict[str, Tensor]
Step = Callable[[], Squares | None]
"""One step; the second moments where they are taken."""
TOLERANCE = 1e-3
"""float32 through up to 15 layers."""
CAPTURED = ", captured"


@dataclass(frozen=True)
class Network:
    """A network and a batch for it."""

    name: str
    build: Callable[[], nn.Module]
    x: Tensor
    y: Tensor

    def fresh(self) -> nn.Module:
        torch.manual_seed(0)
        return self.build().to(self.x.device)

    def backward(self, model: nn.Module) -> None:
        model.zero_grad()
        torch.autograd.backward(F.cross_entropy(model(self.x), self.y))


def mlp(width: int) -> nn.Module:
    """Four hidden layers."""
    hidden = [layer for _ in range(4) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(width, 10))


def vgg(width: int, norm: bool) -> nn.Module:
    """VGG-16's thirteen convolutions on 32 × 32 images, with one hidden linear layer, as used on CIFAR."""
    layers: list[nn.Module] = []
    channels = 3
    for factor in (1, 1, 0, 2, 2, 0, 4, 4, 4, 0, 8, 8, 8, 0, 8, 8, 8, 0):
        if factor == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(channels, factor * width, 3, padding=1, bias=not norm))
        channels = factor * width
        layers += [nn.BatchNorm2d(channels), nn.ReLU()] if norm else [nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(channels, channels), nn.ReLU(), nn.Linear(channels, 10))


def networks(small: bool, device: torch.device) -> list[Network]:
    """An MLP, and a VGG-like net without and with batch norm."""
    torch.manual_seed(1)
    batch, wide, channels = (16, 256, 16) if small else (64, 1024, 64)
    images, labels = torch.randn(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)
    return [
        Network(f"MLP 4 × {wide}, batch {batch}", lambda: mlp(wide), torch.randn(batch, wide, device=device), labels),
        Network(f"VGG-16-like, {channels} channels, batch {batch}", lambda: vgg(channels, norm=False), images, labels),
        Network(f"the same with batch norm, batch {batch}", lambda: vgg(channels, norm=True), images, labels),
    ]


# ----------------------------------------------------------------------------------------------------------- contenders


def _plain(network: Network) -> Step:
    model = network.fresh()
    return lambda: network.backward(model)


def _ours(network: Network) -> Step:
    model = network.fresh()
    moments = watch(model)

    def step() -> Squares:
        network.backward(model)
        return {name: moments.pop(name) for name in moments.names}

    return step


def _backpack(network: Network) -> Step:
    package, extension = import_module("backpack"), import_module("backpack.extensions").SumGradSquared
    model, criterion = package.extend(network.fresh()), package.extend(nn.CrossEntropyLoss())

    def step() -> Squares:
        model.zero_grad()
        with package.backpack(extension()):
            criterion(model(network.x), network.y).backward()
        return {name: p.sum_grad_squared for name, p in model.named_parameters()}

    return step


def _opacus(network: Network) -> Step:
    model: Any = import_module("opacus").GradSampleModule(network.fresh())

    def step() -> Squares:
        network.backward(model)
        q = {n: (p.grad_sample / len(network.x)).square_().sum(0) for n, p in model.named_parameters()}
        for p in model.parameters():
            p.grad_sample = None
        return {name.removeprefix("_module."): value for name, value in q.items()}

    return step


def _vmap(network: Network) -> Step:
    model = network.fresh()
    if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        raise RuntimeError("batch norm in training mode mixes the samples")
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: Squares, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=16)

    def step() -> Squares:
        gradients = per_sample(parameters, network.x, network.y)
        for name, p in model.named_parameters():
            p.grad = gradients[name].mean(0)
        return {name: (g / len(network.x)).square_().sum(0) for name, g in gradients.items()}

    return step


def _captured(build: Callable[[Network], Step]) -> Callable[[Network], Step]:
    """The same step as one CUDA graph."""

    def build_captured(network: Network) -> Step:
        if not network.x.is_cuda:
            raise NotImplementedError("needs a GPU")
        step, graph, aside = build(network), torch.cuda.CUDAGraph(), torch.cuda.Stream()  # type: ignore[no-untyped-call]
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            q = step()

        def replay(kept: Step = step) -> Squares | None:
            """`kept`: the graph reads the model's memory, but does not own it."""
            graph.replay()
            return q

        return replay

    return build_captured


PLAIN, OURS = "forward + backward", "thinwire"
CONTENDERS: dict[str, tuple[str, Callable[[Network], Step]]] = {
    PLAIN: ("torch", _plain),
    OURS: ("thinwire", _ours),
    "BackPACK": ("backpack", _backpack),
    "Opacus": ("opacus", _opacus),
    "vmap(grad)": ("torch", _vmap),
    PLAIN + CAPTURED: ("torch", _captured(_plain)),
    OURS + CAPTURED: ("thinwire", _captured(_ours)),
}
"""Each with the package that it needs."""


# ------------------------------------------------------------------------------------------------------------- the race


@dataclass(frozen=True)
class MomentsRow(Measured):
    """One contender on one network: milliseconds, and the ratios to plain forward + backward; or why it has none."""

    network: str
    method: str
    ms: float | None = None
    ratio: float | None = None
    lowest: float | None = None
    highest: float | None = None
    absent: str | None = None


def bench_moments(small: bool, device: torch.device, repeats: int, only: int | None = None) -> Iterator[MomentsRow]:
    """Every contender on every network, or on the one that `only` numbers."""
    known = networks(small, device)
    if only is not None and not 0 <= only < len(known):
        raise ConfigError(f"--only is the number of a network, 0 to {len(known) - 1}, got {only}")
    for network in known if only is None else [known[only]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the other packages' own
            rows = _rows(network, repeats)
        yield from rows


def _rows(network: Network, repeats: int) -> list[MomentsRow]:
    steps, absent = _prepared(network)
    times = in_turns(steps, lambda: None, repeats, _second_run)
    rows = []
    for name in CONTENDERS:
        if name in absent:
            rows.append(MomentsRow(network.name, name, absent=absent[name]))
            continue
        base = times[PLAIN + CAPTURED * name.endswith(CAPTURED)]
        ratios = [own / plain for own, plain in zip(times[name], base, strict=False)]
        median, ratio = statistics.median(times[name]), statistics.median(ratios)
        rows.append(MomentsRow(network.name, name, median, ratio, min(ratios), max(ratios)))
    return rows


def _prepared(network: Network) -> tuple[dict[str, Step], dict[str, str]]:
    """Who can run it (once its q in full precision was compared with ours), and why the others cannot."""
    steps: dict[str, Step] = {}
    absent: dict[str, str] = {}
    reference: Squares = {}
    for name, (package, build) in CONTENDERS.items():
        if find_spec(package) is None:
            absent[name] = f"{package} is not installed"
            continue
        try:
            with torch.backends.cudnn.flags(allow_tf32=False):  # which a graph keeps: built anew below
                q = build(network)()
            if q is not None:
                reference = reference or {name: value.clone() for name, value in q.items()}
                _compare(q, reference)
            steps[name] = build(network)
        except (NotImplementedError, RuntimeError, AttributeError) as error:
            absent[name] = f"refuses: {(str(error) or type(error).__name__).strip().splitlines()[0][:60]}"
    return steps, absent


def _compare(q: Squares, reference: Squares) -> None:
    for name, value in reference.items():
        gap = (q[name] - value).norm() / value.norm()
        if gap > TOLERANCE:
            raise RuntimeError(f"q of {name} differs by {gap:.1e}")


def _second_run(step: Callable[[], object]) -> float:
    """Milliseconds of a step after one that is not timed; a GPU has done its work when they end."""

    def finished() -> None:
        step()
        if torch.cuda.is_available():
            torch.cuda.synchronize()

    finished()
    return wall_clock(finished)


def moments_table(rows: Sequence[MomentsRow]) -> Table:
    """One row a network and a contender."""
    return grid(("network", "method", "median ms", "ratio", "lowest – highest"), map(_cells, rows), left=2)


def _cells(row: MomentsRow) -> list[str]:
    if row.ms is None:
        return [row.network, row.method, "", "", row.absent or ""]
    return [row.network, row.method, f"{row.ms:.1f}", f"{row.ratio:.2f}", f"{row.lowest:.2f} – {row.highest:.2f}"]
