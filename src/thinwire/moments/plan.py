"""Where each parameter's second moment will come from, known before training."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from torch import nn

from thinwire.errors import AttachError, ConfigError
from thinwire.moments.layer import Layer
from thinwire.moments.layers import layer_of


@dataclass(frozen=True)
class Exact:
    """Per-sample gradients from the modules' inputs and output gradients, in the same backward pass."""

    def __str__(self) -> str:
        return "exact"


@dataclass(frozen=True)
class MicroBatches:
    """q = Σ_j ((b_j / |B|) g_j)² over m micro-batches with b_j samples and mean gradients g_j: for any module.

    Its noise part equals that of the per-sample moment, its signal part is μ² / m in place of μ² / |B|: it is
    criterion (1) of the paper with m in place of |B|, so r² / v ≤ m, and α must stay below m. The training loop has to
    run one backward pass for each micro-batch: see `Moments.backward`. A batch norm in training mode then takes its
    statistics from each micro-batch.
    """

    parts: int = 8

    def __post_init__(self) -> None:
        if isinstance(self.parts, bool) or not isinstance(self.parts, int) or self.parts < 2:
            raise ConfigError(f"micro-batches must be 2 or more (8 for alpha = 2), got {self.parts!r}")

    def __str__(self) -> str:
        return f"{self.parts} micro-batches"


Source = Exact | MicroBatches


@dataclass(frozen=True)
class Place:
    """One module that a parameter belongs to. Tied parameters have several."""

    module: nn.Module
    local: str
    layer: Layer | None
    refusal: str | None
    """Why the module cannot give exact moments of it; None if it can."""


@dataclass(frozen=True)
class Entry:
    """One parameter of the plan."""

    name: str
    shape: tuple[int, ...]
    source: Source | None
    """None: no source serves it."""
    cost: float
    """Extra arithmetic, as a share of the module's own forward and backward pass (an estimate)."""
    why: str
    places: tuple[Place, ...]


@dataclass(frozen=True)
class Plan:
    """For each parameter: its source, the cost and the reason. Prints as a table.

    >>> model = nn.Sequential(nn.Linear(4, 8), nn.PReLU())
    >>> print(plan(model, (Exact(), MicroBatches(8))))
    parameter  shape  source           cost  why
    0.weight   8×4    exact            0.33  Linear: (δ∘δ)ᵀ(x∘x), or Σ_z (δ_zᵀ x_z)² with extra dimensions
    0.bias     8      exact            0.00  Linear: Σ_z (Σ δ_z)²
    1.weight   1      8 micro-batches  0.00  PReLU has no exact formula here
    """

    entries: tuple[Entry, ...]

    def __iter__(self) -> Iterator[Entry]:
        return iter(self.entries)

    @property
    def unserved(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.source is None)

    def __str__(self) -> str:
        lines = [("parameter", "shape", "source", "cost", "why"), *map(_line, self.entries)]
        widths = [max(len(line[column]) for line in lines) for column in range(4)]
        texts = [
            "  ".join([*(cell.ljust(w) for cell, w in zip(line, widths, strict=False)), line[4]]) for line in lines
        ]
        return "\n".join(text.rstrip() for text in texts)

    def check(self) -> None:
        """Refuse a model with parameters that no source serves."""
        if self.unserved:
            names = "\n".join(f"  {entry.name}: {entry.why}" for entry in self.unserved)
            raise AttachError(
                f"{len(self.unserved)} of {len(self.entries)} parameters have no exact second moment:\n{names}\n"
                "Freeze them, send them by another rule (a Route, and watch(model, rule=route)), or let micro-batches "
                "serve them: watch(model, sources=(Exact(), MicroBatches(8))), and moments.backward(loss_of, *batch) "
                "in the training loop"
            )


def _line(entry: Entry) -> tuple[str, ...]:
    shape = "×".join(map(str, entry.shape)) or "1"
    return entry.name, shape, str(entry.source or "none"), f"{entry.cost:.2f}", entry.why


def plan(model: nn.Module, sources: Sequence[Source] = (Exact(),), needed: Collection[str] | None = None) -> Plan:
    """The plan for every parameter that is trained (and needed): the first of the sources that can serve it."""
    _check_sources(sources)
    check_initialised(model)
    places = _places(model)
    trained = ((plain(name), parameter) for name, parameter in model.named_parameters() if parameter.requires_grad)
    chosen = [(name, parameter) for name, parameter in trained if needed is None or name in needed]
    return Plan(tuple(_entry(name, tuple(p.shape), places[id(p)], sources) for name, p in chosen))


def check_initialised(model: nn.Module) -> None:
    """Refuse lazy modules that no batch has passed through yet: their parameters have no shape."""
    lazy = [plain(name) for name, p in model.named_parameters() if isinstance(p, nn.parameter.UninitializedParameter)]
    if lazy:
        raise AttachError(
            f"{len(lazy)} parameters have no shape yet: {', '.join(lazy)}. Call the model once with a batch, so that "
            "its lazy modules are initialised, before it is watched (and before the optimizer and DDP are built)"
        )


def plain(name: str) -> str:
    """A parameter's name in the plain module: torch.compile adds a prefix."""
    return name.replace("_orig_mod.", "")


def _entry(name: str, shape: tuple[int, ...], places: tuple[Place, ...], sources: Sequence[Source]) -> Entry:
    refusals = [place.refusal for place in places if place.refusal]
    for source in sources:
        match source:
            case Exact() if not refusals:
                return Entry(name, shape, source, _cost(places), _formula(places), places)
            case MicroBatches():
                return Entry(name, shape, source, 0.0, "; ".join(refusals) or "asked for", places)
    return Entry(name, shape, None, 0.0, "; ".join(refusals), places)


def _cost(places: tuple[Place, ...]) -> float:
    return max(place.layer.cost if place.layer and place.layer.needs_input(place.local) else 0.0 for place in places)


def _formula(places: tuple[Place, ...]) -> str:
    texts = []
    for place in places:
        assert place.layer is not None
        formula = place.layer.formula if place.layer.needs_input(place.local) else "Σ_z (Σ δ_z)²"
        texts.append(f"{type(place.module).__name__}: {formula}")
    return texts[0] if len(texts) == 1 else "tied, added up before squaring: " + " + ".join(texts)


def _places(model: nn.Module) -> dict[int, tuple[Place, ...]]:
    """Every place of every parameter, by the parameter's id."""
    attention = {
        id(inner)
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
        for inner in module.modules()
    }
    found: dict[int, tuple[Place, ...]] = {}
    for module in model.modules():
        for local, parameter in module._parameters.items():
            if parameter is not None:
                place = _place(module, local, parameter, id(module) in attention)
                found[id(parameter)] = (*found.get(id(parameter), ()), place)
    return found


def _place(module: nn.Module, local: str, parameter: nn.Parameter, in_attention: bool) -> Place:
    layer, kind = layer_of(module), type(module).__name__
    refusal = None
    if in_attention:
        refusal = "MultiheadAttention calls functions, not modules"
    elif layer is None or local not in layer.parameters:
        refusal = f"{kind} has no exact formula here"
    elif problem := layer.refusal(module):
        refusal = f"{kind} {problem}"
    elif not parameter.is_floating_point():
        refusal = f"{kind} has numbers of type {parameter.dtype}"
    return Place(module, local, layer, refusal)


def _check_sources(sources: Sequence[Source]) -> None:
    if not sources or not all(isinstance(source, Exact | MicroBatches) for source in sources):
        raise ConfigError(f"sources must be Exact() and MicroBatches(m), the preferred one first, got {sources!r}")
