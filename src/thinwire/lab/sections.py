"""The sections of a laboratory: all rates beside each other, then each rate with the parts of every method's step."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from thinwire.lab.block import SETTLING_ROUNDS, Block, Trial
from thinwire.lab.race import Race
from thinwire.lab.setting import ALONE, DENSE, is_rule
from thinwire.report.page import Axis, Chart, Look, Section, Series, looks
from thinwire.report.record_file import Experiment, one_line_each
from thinwire.training.formatting import NOTHING, plural, show_bytes, show_count

LAB = "lab"
EMULATED = "links EMULATED: no packets, no protocol headers; bytes carried unknown"
NOTES = (
    "ms a step: the median over rounds of the host that was last, and the least and the most of the rounds.",
    f"Compute is the step of {ALONE!r}, which exchanges nothing. Encode and decode are measured in thinwire's hook; "
    "torch's own are out of sight. Wire + waiting is what is left of the step, not hidden behind computing: where it "
    "is near zero it may come out below, by noise.",
    "Counted: bytes that a host sends a step by thinwire's ledger, for torch's methods by the formula of a ring "
    "all-reduce. Carried: by its interface's own counter, with the headers and acknowledgements of packets.",
    "All hosts share this machine's cores: computing, encoding and decoding take longer than on hosts of their own.",
)


def sections(blocks: Sequence[Block]) -> list[Section]:
    """For each setting: one of all its rates, where there are several, and one of each rate."""
    return [section for some in _settings(blocks) for section in _of_setting(some)]


def _settings(blocks: Sequence[Block]) -> list[list[Block]]:
    groups: dict[object, list[Block]] = {}
    for block in blocks:
        echo = (block.replay, block.codec, block.every)
        key = (block.hosts, block.task, block.batch, block.parameters, block.emulated, *echo)
        groups.setdefault(key, []).append(block)
    return list(groups.values())


def _of_setting(blocks: Sequence[Block]) -> list[Section]:
    return [*([_overview(blocks)] if len(blocks) > 1 else []), *(section for block in blocks for section in _at(block))]


def _title(block: Block) -> str:
    return f"{plural(block.hosts, 'host')} · {block.task}"


def _facts(block: Block) -> list[str]:
    computing = [] if block.replay is None else [f"computing REPLAYED: every host sleeps {block.replay:g} ms"]
    if block.codec is not None:
        computing += [f"encoding and decoding REPLAYED: {block.codec:g} ms, messages of normal gradients sent again"]
    if block.every > 1:
        computing += [f"an exchange every {block.every} steps"]
    return [
        f"{block.parameters:,} parameters",
        *computing,
        *([] if computing else [f"{plural(block.batch, 'sample')} a host and step"]),
        *([EMULATED] if block.emulated else []),
    ]


# ------------------------------------------------------------------------------------------------------- all rates


def _overview(blocks: Sequence[Block]) -> Section:
    """Milliseconds a step of every method at every rate."""
    methods = list(dict.fromkeys(trial.method for block in blocks for trial in block.trials))
    styles = _looks(methods)
    return Section(
        title=_title(blocks[0]),
        facts=_facts(blocks[0]),
        sentences=[fastest(block) for block in blocks],
        table=[
            ["ms a step", *(str(block.cable) for block in blocks)],
            *(_across(method, blocks) for method in methods),
        ],
        charts=_charts(blocks, methods, styles),
        looks=styles,
        notes=NOTES,
    )


def _looks(methods: Sequence[str]) -> list[Look]:
    """Grey for what ours are measured by."""
    return looks([not is_rule(method) for method in methods])


def _across(method: str, blocks: Sequence[Block]) -> list[str]:
    return [method, *(next((show_ms(t.median) for t in b.trials if t.method == method), NOTHING) for b in blocks)]


def show_ms(value: float) -> str:
    """Milliseconds, whole ones from 100 on.

    >>> show_ms(709.4), show_ms(31.26), show_ms(-0.04)
    ('709', '31.3', '-0.0')
    """
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}"


def _charts(blocks: Sequence[Block], methods: Sequence[str], styles: Sequence[Look]) -> list[Chart]:
    """Time against the slower rate of a wire; what is not shaped has no rate to be drawn at."""
    shaped = sorted((rate, place) for place, b in enumerate(blocks) if (rate := b.cable.slowest) is not None)
    if not shaped:
        return []
    series = [
        _series(method, style, [blocks[at] for _, at in shaped]) for method, style in zip(methods, styles, strict=True)
    ]
    note = "the median over rounds; bands span them; unshaped wires stand in the table alone"
    x = Axis("bits a second of a wire's slower way", log=True, unit="bit/s")
    return [Chart("Time of a step against the rate of the wires", note, x, Axis("ms a step", log=True), series)]


def _series(method: str, style: Look, blocks: Sequence[Block]) -> Series:
    points = [(b.cable.slowest or 0.0, t) for b in blocks for t in b.trials if t.method == method]
    rates, trials = [rate for rate, _ in points], [trial for _, trial in points]
    low, high = [min(trial.ms) for trial in trials], [max(trial.ms) for trial in trials]
    return Series(method, rates, [trial.median for trial in trials], style, low, high)


# --------------------------------------------------------------------------------------------------------- one rate


def _at(block: Block) -> list[Section]:
    """How long a step takes; then where it goes. Two tables, for one would be too wide for a terminal."""
    title, styles = f"{_title(block)} · {block.cable}", _looks([trial.method for trial in block.trials])
    turns = f"{plural(len(block.trials[0].ms), 'round')} of {plural(block.steps, 'step')} by turns"
    times = Section(
        title, [*_facts(block), turns], verdict(block), _table(block, _times(block)), [], styles, notes=NOTES
    )
    if block.codec is not None:
        return [times]
    parts = Section(f"{title} · parts", _facts(block), parts_verdict(block), _table(block, _parts(block)), [], styles)
    race = [] if block.race is None else [_race(block, block.race, title)]
    return [times, *race, parts]


def _race(block: Block, race: Race, title: str) -> Section:
    """How long each method takes to where dense training ends."""
    trials = [trial for trial in block.trials if trial.method in race.curves]
    facts = [*_facts(block), f"{plural(race.steps, 'step')} of training, seed 0", "trained once: bits know no wire"]
    styles = _looks([trial.method for trial in trials])
    head = ["method", f"{race.metric}\nat the end", "steps to\ndense's ±1 %", "seconds", "speed /\ndense"]
    rows = [[t.method, f"{race.last(t.method):.4g}", *_arrival(block, race, t)] for t in trials]
    chart = Chart(
        f"{race.metric} against seconds at {block.cable}",
        "steps of one training, times the median of a step here",
        Axis("seconds", log=True),
        Axis(race.metric),
        [_course(block, race, trial, style) for trial, style in zip(trials, styles, strict=True)],
    )
    return Section(f"{title} · to dense's figure", facts, [_first(block, race)], [head, *rows], [chart], styles)


def _arrival(block: Block, race: Race, trial: Trial) -> list[str]:
    seconds, dense = block.seconds_to_goal(trial), block.seconds_to_goal(block.trial(DENSE))
    if seconds is None or dense is None:
        return ["not reached", NOTHING, NOTHING]
    return [str(race.steps_to_goal(trial.method)), f"{seconds:.4g}", f"{show_count(dense / seconds)}×"]


def _course(block: Block, race: Race, trial: Trial, style: Look) -> Series:
    curve = race.curves[trial.method]
    return Series(trial.method, [s * trial.median / 1e3 for s, _ in curve], [value for _, value in curve], style)


def _first(block: Block, race: Race) -> str:
    """Who comes first to where dense training ends, and how much sooner than dense and than torch's best hook."""
    there = [(seconds, t) for t in block.trials if (seconds := block.seconds_to_goal(t)) is not None]
    seconds, best = min(there, key=lambda each: each[0])
    dense = block.seconds_to_goal(block.trial(DENSE))
    assert dense is not None  # its own last figure is within a hundredth of itself
    words = f"{block.cable}: {best.method} is the first within 1 % of where dense ends, after {seconds:.4g} s"
    if not is_rule(best.method):
        return f"{words}; dense takes {show_count(dense / seconds)} times as long."
    theirs = min((s for s, t in there if not is_rule(t.method) and t.method != DENSE), default=None)
    beside = (
        ""
        if theirs is None
        else f"; torch's best hook that comes there takes {show_count(theirs / seconds)} times as long"
    )
    return f"{words}; dense takes {show_count(dense / seconds)} times as long{beside}."


Columns = dict[str, Callable[[Trial], str]]
"""A table's heads, and what stands in a row."""


def _table(block: Block, columns: Columns) -> list[list[str]]:
    return [["method", *columns], *([t.method, *(cell(t) for cell in columns.values())] for t in block.trials)]


def _times(block: Block) -> Columns:
    share = {} if block.replay is None else {"comput-\ning": lambda trial: f"{block.utilisation(trial):.1%}"}
    return share | {
        "ms\na step": lambda trial: show_ms(trial.median),
        "least –\nmost": lambda trial: f"{show_ms(min(trial.ms))} – {show_ms(max(trial.ms))}",
        "speed /\ndense": lambda trial: f"{show_count(block.speed(trial))}×",
        "bytes\ncounted": lambda trial: show_bytes(trial.sent),
    }


def _parts(block: Block) -> Columns:
    return {
        "compute": lambda _: show_ms(block.compute),
        "encode": lambda trial: NOTHING if trial.encode_ms is None else show_ms(trial.encode_ms),
        "wire +\nwaiting": lambda trial: NOTHING if trial.method == ALONE else show_ms(block.rest(trial)),
        "decode": lambda trial: NOTHING if trial.decode_ms is None else show_ms(trial.decode_ms),
        "bytes\ncarried": lambda trial: NOTHING if trial.carried is None else show_bytes(trial.carried),
        "/\ncounted": lambda trial: f"{trial.carried / trial.sent:.3f}" if trial.sent and trial.carried else NOTHING,
    }


# ----------------------------------------------------------------------------------------------------------- verdict


def verdict(block: Block) -> list[str]:
    """What pays at this rate, and what does not."""
    return [sentence for sentence in (_replayed(block), fastest(block), _losers(block), *_choices(block)) if sentence]


def _choices(block: Block) -> list[str]:
    """What every method that chooses had chosen in the end."""
    told = [(trial.method, trial.explained.splitlines()[1].strip()) for trial in block.trials if trial.explained]
    return [f"{method}, at the end: {words}." for method, words in told]


def parts_verdict(block: Block) -> list[str]:
    """Where the dense step goes, and whether the bytes agree."""
    return [_wire(block), _bytes(block)]


def fastest(block: Block) -> str:
    """The fastest of those that were faster than dense float32 in every round."""
    dense, best = block.trial(DENSE), min(block.rivals, key=lambda trial: trial.median)
    winners = [trial for trial in block.rivals if trial.beats(dense)]
    if winners:
        best = min(winners, key=lambda trial: trial.median)
        times = f"{show_count(block.speed(best))} times the speed, and faster in every round"
        return f"{block.cable}: {_figures(best, dense)}: {times}.{_beside_torch(block, best)}"
    if best is dense:
        return f"{block.cable}: dense fp32 is the fastest here ({show_ms(dense.median)} ms a step); nothing pays."
    if len(dense.ms) < SETTLING_ROUNDS:
        few = f"{plural(len(dense.ms), 'round')} cannot settle it (--rounds {SETTLING_ROUNDS} can)"
        return f"{block.cable}: {_figures(best, dense)}, but {few}."
    return f"{block.cable}: nothing was faster than dense fp32 in every round: {_figures(best, dense)}."


def _figures(best: Trial, dense: Trial) -> str:
    return f"{best.method} takes {show_ms(best.median)} ms a step, dense fp32 {show_ms(dense.median)}"


def _beside_torch(block: Block, best: Trial) -> str:
    hooks = [trial for trial in block.rivals if not is_rule(trial.method) and trial.method != DENSE]
    if not hooks or not is_rule(best.method):
        return ""
    theirs = min(hooks, key=lambda trial: trial.median)
    always = "in every round" if best.beats(theirs) else "but not in every round"
    times = show_count(theirs.median / best.median)
    return f" Beside torch's best hook, {theirs.method}: {times} times the speed, {always}."


def _losers(block: Block) -> str:
    """Methods that were slower than dense float32 in every round."""
    dense = block.trial(DENSE)
    slower = [trial for trial in block.rivals if dense.beats(trial)]
    listed = ", ".join(f"{trial.method} ({show_count(block.speed(trial))}×)" for trial in slower)
    return f"Slower than dense fp32 in every round: {listed}." if slower else ""


def _wire(block: Block) -> str:
    dense = block.trial(DENSE)
    share = block.rest(dense) / dense.median
    return f"Dense fp32 spends {share:.0%} of its step beyond computing ({show_ms(block.compute)} ms)."


def _bytes(block: Block) -> str:
    booked = [(trial.carried, trial.sent) for trial in block.rivals if trial.sent and trial.carried is not None]
    if not booked:
        return "Links were emulated: no interface carried these bytes, and a real wire takes headers and losses beside."
    ratios = [carried / sent for carried, sent in booked]
    more = max(carried - sent for carried, sent in booked)
    return (
        f"The interfaces carried {min(ratios):.3f} to {max(ratios):.3f} times the bytes that were counted, at most "
        f"{show_bytes(more)} a step more: headers and acknowledgements, which weigh most where messages are small."
    )


def _replayed(block: Block) -> str:
    if block.replay is None:
        return ""
    return (
        f"Computing was replayed: every host slept {block.replay:g} ms a step, then had the same gradients as ever at "
        "once, so nothing travelled while it computed. Times say what the wire does; nothing was trained."
    )


LAB_EXPERIMENT = Experiment(LAB, one_line_each(LAB, Block.of_plain), sections)
