"""What second moments of per-sample gradients cost: forward + backward = 1.

    python benchmarks/bench_moments.py [--small] [--repeats 7] [--device cuda]

thinwire beside BackPACK's SumGradSquared, Opacus' GradSampleModule (squared and summed afterwards) and torch.func's
vmap(grad); each gives the same q. The contenders take turns; the table holds medians over the turns of (time / time of
plain forward + backward in the same turn), with the lowest and the highest. Before each timed step comes one that is
not timed, for some contenders leave the memory in disorder. A peer that is not installed, or refuses the network, is
listed as such: BackPACK and Opacus refuse batch norm in training mode, so the VGG-like net comes with and without it.

On a GPU these networks are small enough that the host, which launches the kernels, takes longer than the GPU. So both
are also captured as a CUDA graph, which the host launches at once; its ratio is to the captured forward + backward.

The floor for the MLP is one matrix product more for each layer beside its three (the first layer has two): 15/11.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from thinwire.moments import watch

Step = Callable[[], dict[str, Tensor] | None]


@dataclass(frozen=True)
class Network:
    name: str
    build: Callable[[], nn.Module]
    x: Tensor
    y: Tensor


def mlp(width: int) -> nn.Module:
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


# --------------------------------------------------------------------------------------------------------- contenders


def fresh(network: Network) -> nn.Module:
    torch.manual_seed(0)
    return network.build().to(network.x.device)


def run(model: nn.Module, network: Network) -> None:
    model.zero_grad()
    F.cross_entropy(model(network.x), network.y).backward()


def plain(network: Network) -> Step:
    model = fresh(network)
    return lambda: run(model, network)


def ours(network: Network) -> Step:
    model = fresh(network)
    moments = watch(model)

    def step() -> dict[str, Tensor]:
        run(model, network)
        return {name: moments.pop(name) for name in moments.names}

    return step


def backpack_step(network: Network) -> Step:
    from backpack import backpack, extend
    from backpack.extensions import SumGradSquared

    model, criterion = extend(fresh(network)), extend(nn.CrossEntropyLoss())

    def step() -> dict[str, Tensor]:
        model.zero_grad()
        with backpack(SumGradSquared()):
            criterion(model(network.x), network.y).backward()
        return {name: p.sum_grad_squared for name, p in model.named_parameters()}  # type: ignore[attr-defined]

    return step


def opacus_step(network: Network) -> Step:
    from opacus import GradSampleModule

    model = GradSampleModule(fresh(network))

    def step() -> dict[str, Tensor]:
        model.zero_grad()
        F.cross_entropy(model(network.x), network.y).backward()
        q = {n: (p.grad_sample / len(network.x)).square_().sum(0) for n, p in model.named_parameters()}
        for p in model.parameters():
            p.grad_sample = None
        return {name.removeprefix("_module."): value for name, value in q.items()}

    return step


def vmap_step(network: Network) -> Step:
    model = fresh(network)
    if any(isinstance(module, nn.BatchNorm2d) for module in model.modules()):
        raise RuntimeError("batch norm in training mode mixes the samples")
    parameters = {name: p.detach() for name, p in model.named_parameters()}

    def loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, parameters, (x[None],)), y[None])

    per_sample = vmap(grad(loss), in_dims=(None, 0, 0), chunk_size=16)

    def step() -> dict[str, Tensor]:
        gradients = per_sample(parameters, network.x, network.y)
        for name, p in model.named_parameters():
            p.grad = gradients[name].mean(0)
        return {name: (g / len(network.x)).square_().sum(0) for name, g in gradients.items()}

    return step


def captured(build: Callable[[Network], Step]) -> Callable[[Network], Step]:
    """The same step as one CUDA graph."""

    def build_captured(network: Network) -> Step:
        if not network.x.is_cuda:
            raise NotImplementedError("needs a GPU")
        step, graph, aside = build(network), torch.cuda.CUDAGraph(), torch.cuda.Stream()
        with torch.cuda.stream(aside):
            for _ in range(3):
                step()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            q = step()

        def replay(kept: Step = step) -> dict[str, Tensor] | None:
            """`kept`: the graph reads the model's memory, but does not own it."""
            graph.replay()
            return q

        return replay

    return build_captured


CONTENDERS: dict[str, tuple[str, Callable[[Network], Step]]] = {
    "forward + backward": ("torch", plain),
    "thinwire": ("thinwire", ours),
    "BackPACK": ("backpack", backpack_step),
    "Opacus": ("opacus", opacus_step),
    "vmap(grad)": ("torch", vmap_step),
    "forward + backward, captured": ("torch", captured(plain)),
    "thinwire, captured": ("thinwire", captured(ours)),
}


# ------------------------------------------------------------------------------------------------------------ timing


def seconds(step: Step, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start


def prepared(network: Network) -> tuple[dict[str, Step], dict[str, str]]:
    """Who can run it (once its q in full precision was compared with ours), and why the others cannot."""
    steps: dict[str, Step] = {}
    absent: dict[str, str] = {}
    reference: dict[str, Tensor] = {}
    for name, (package, build) in CONTENDERS.items():
        if find_spec(package) is None:
            absent[name] = f"{package} is not installed"
            continue
        try:
            with torch.backends.cudnn.flags(allow_tf32=False):  # which a graph keeps: built anew below
                q = build(network)()
            if q is not None:
                reference = reference or {name: value.clone() for name, value in q.items()}
                compare(q, reference)
            steps[name] = build(network)
        except (NotImplementedError, RuntimeError, AttributeError) as error:
            absent[name] = f"refuses: {(str(error) or type(error).__name__).strip().splitlines()[0][:60]}"
    return steps, absent


def compare(q: dict[str, Tensor], reference: dict[str, Tensor]) -> None:
    for name, value in reference.items():
        gap = (q[name] - value).norm() / value.norm()
        if gap > 1e-3:  # float32 through up to 15 layers
            raise RuntimeError(f"q of {name} differs by {gap:.1e}")


def measure(network: Network, repeats: int) -> tuple[dict[str, list[float]], dict[str, str]]:
    steps, absent = prepared(network)
    times: dict[str, list[float]] = {name: [] for name in steps}
    for turn in range(repeats + 1):
        for name, step in steps.items():
            step()
            took = seconds(step, network.x.device)
            if turn > 0:  # the first turn warms up
                times[name].append(took)
    return times, absent


def add_rows(table: Table, network: Network, repeats: int) -> None:
    times, absent = measure(network, repeats)
    for name in CONTENDERS:
        if name in absent:
            table.add_row(network.name, name, "", "", absent[name])
            continue
        base = times["forward + backward, captured" if "captured" in name else "forward + backward"]
        ratios = [own / plain for own, plain in zip(times[name], base, strict=True)]
        median = f"{1e3 * statistics.median(times[name]):.1f}"
        spread = f"{min(ratios):.2f} – {max(ratios):.2f}"
        table.add_row(network.name, name, median, f"{statistics.median(ratios):.2f}", spread)


def networks(small: bool, device: torch.device) -> list[Network]:
    torch.manual_seed(1)
    batch, wide, channels = (16, 256, 16) if small else (64, 1024, 64)
    images, labels = torch.randn(batch, 3, 32, 32, device=device), torch.randint(10, (batch,), device=device)
    return [
        Network(f"MLP 4 × {wide}, batch {batch}", lambda: mlp(wide), torch.randn(batch, wide, device=device), labels),
        Network(f"VGG-16-like, {channels} channels, batch {batch}", lambda: vgg(channels, norm=False), images, labels),
        Network(f"the same with batch norm, batch {batch}", lambda: vgg(channels, norm=True), images, labels),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--small", action="store_true", help="small networks and batches: under a minute")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--only", type=int, help="one of the networks: 0, 1 or 2")
    chosen = parser.parse_args()
    warnings.filterwarnings("ignore")  # the peers' own
    device = torch.device(chosen.device)
    what = torch.cuda.get_device_name() if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    table = Table(
        "network", "method", "median ms", "ratio", "lowest – highest", title=f"torch {torch.__version__}, {what}"
    )
    for number, network in enumerate(networks(chosen.small, device)):
        if chosen.only in (None, number):
            add_rows(table, network, chosen.repeats)
    Console(width=140).print(table)


if __name__ == "__main__":
    main()
