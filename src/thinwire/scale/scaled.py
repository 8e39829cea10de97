"""All that was found for one number of workers, and the sections that show how it moves as workers are added."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from thinwire.link import show_rate
from thinwire.report.page import Axis, Chart, Section, Series, lines, looks
from thinwire.report.record_file import Experiment, one_line_each
from thinwire.scale.estimate import RING, Cost, ScaleSetting, costs
from thinwire.scale.noisy_quadratic import Course, courses
from thinwire.training.formatting import NOTHING, plural, show_bytes, show_count

SCALE = "scale"
NOTES = (
    "Bytes: of real messages about normal gradients, sealed as they travel; the server's answers are as long as what "
    "its owners are told. Headers of packets are not counted.",
    "Times: by thinwire.timeline, for links that carry their rate, a ring whose messages wait for each other, and "
    "some work of a core for each message. Encoding and decoding take no time here.",
    "Training: one convex problem, the same noise for every exchange, the step size as it is. f − f* after all steps.",
)


@dataclass(frozen=True)
class Scaled:
    """Every exchange at one number of workers."""

    setting: ScaleSetting
    costs: tuple[Cost, ...]
    courses: tuple[Course, ...]

    @property
    def workers(self) -> int:
        return self.costs[0].workers

    def plain(self) -> dict[str, Any]:
        """As a record has it; `of_plain` is the inverse."""
        return asdict(self)

    @staticmethod
    def of_plain(plain: Mapping[str, Any]) -> Scaled:
        setting = {**plain["setting"], "workers": tuple(plain["setting"]["workers"])}
        return Scaled(
            ScaleSetting(**setting),
            tuple(Cost.of_plain(cost) for cost in plain["costs"]),
            tuple(Course.of_plain(course) for course in plain["courses"]),
        )


def scaled(setting: ScaleSetting) -> Iterator[Scaled]:
    """Every number of workers, one after the other."""
    for workers in setting.workers:
        trained = courses(setting, workers) if setting.numbers else []
        yield Scaled(setting, tuple(costs(setting, workers)), tuple(trained))


def sections(found: Sequence[Scaled]) -> list[Section]:
    """For each rule and link: bytes and times, then the training where there was one."""
    groups: dict[object, list[Scaled]] = {}
    for one in found:
        setting = one.setting
        groups.setdefault((setting.rule, setting.rate, setting.parameters, setting.compute), []).append(one)
    return [section for some in groups.values() for section in _of(some)]


def _of(some: Sequence[Scaled]) -> list[Section]:
    trained = [one for one in some if one.courses]
    return [_costs(some), *([_courses(trained)] if trained else [])]


def _costs(some: Sequence[Scaled]) -> Section:
    setting = some[0].setting
    names = list(dict.fromkeys(cost.exchange for one in some for cost in one.costs))
    head = [
        "exchange",
        "workers",
        "bytes a\nworker sends",
        "of the\nbusiest",
        "numbers",
        "messages",
        "latency",
        "ms\na step",
    ]
    rows = [_row(cost) for name in names for one in some for cost in one.costs if cost.exchange == name]
    rate = show_rate(setting.rate)
    return Section(
        f"{setting.rule} · {rate}",
        [f"{setting.parameters:,} parameters", f"{1e3 * setting.compute:g} ms of computing", "estimated, not measured"],
        _crossings(some),
        [head, *rows],
        [
            _chart(
                some,
                names,
                "Bytes that a worker sends a step against workers",
                Axis("bytes", log=True, unit="B"),
                _sent,
            ),
            _chart(some, names, f"Time of a step at {rate} against workers", Axis("ms a step", log=True), _ms),
        ],
        notes=NOTES,
    )


def _row(cost: Cost) -> list[str]:
    entries = NOTHING if cost.entries is None else f"{cost.entries:,.0f}"
    sent = [show_bytes(cost.sent), show_bytes(cost.most), entries, str(cost.messages)]
    return [cost.exchange, str(cost.workers), *sent, f"{1e3 * cost.latency:.3g} ms", f"{1e3 * cost.seconds:.1f}"]


def _sent(cost: Cost) -> float:
    return cost.sent


def _ms(cost: Cost) -> float:
    return 1e3 * cost.seconds


def _chart(some: Sequence[Scaled], names: Sequence[str], title: str, y: Axis, figure: Callable[[Cost], float]) -> Chart:
    courses = []
    for name in names:
        own = [cost for one in some for cost in one.costs if cost.exchange == name]
        courses.append((name, [float(cost.workers) for cost in own], [figure(cost) for cost in own]))
    return Chart(title, "estimated", Axis("workers", log=True), y, _grey(lines(courses)))


def _grey(series: Sequence[Series]) -> list[Series]:
    """With the ring in grey: it is what others are measured by."""
    styles = looks([one.label == RING for one in series])
    return [Series(one.label, one.x, one.y, style) for one, style in zip(series, styles, strict=True)]


def _crossings(some: Sequence[Scaled]) -> list[str]:
    """Where each exchange first takes longer than a dense ring, and where the server first is the fastest of ours."""
    said = []
    for name in dict.fromkeys(cost.exchange for one in some for cost in one.costs if cost.exchange != RING):
        slower = [one.workers for one in some if _times(one).get(name, 0.0) >= _times(one)[RING]]
        words = f"no faster than dense float32 from {plural(slower[0], 'worker')} on" if slower else "faster everywhere"
        said.append(f"{name}: {words}.")
    return said


def _times(one: Scaled) -> dict[str, float]:
    return {cost.exchange: cost.seconds for cost in one.costs}


def _courses(some: Sequence[Scaled]) -> Section:
    setting = some[0].setting
    names = list(dict.fromkeys(course.exchange for one in some for course in one.courses))
    head = [
        "exchange",
        "workers",
        "f − f*\nat the end",
        "over\ndense's",
        "numbers a\nworker sends",
        "error of\nthe sum",
    ]
    rows = [
        _trained(course, one) for name in names for one in some for course in one.courses if course.exchange == name
    ]
    series = []
    for name in names:
        own = [course for one in some for course in one.courses if course.exchange == name]
        series.append((name, [float(course.workers) for course in own], [course.gap[-1] for course in own]))
    title = f"Distance from the optimum after {setting.steps} steps against workers"
    chart = Chart(title, "one run each", Axis("workers", log=True), Axis("f − f*", log=True), _grey(lines(series)))
    facts = [
        f"{setting.numbers:,} numbers",
        plural(setting.steps, "step"),
        f"step size {setting.step_size:g}/L",
        f"shares of {setting.least} numbers and more",
    ]
    return Section(f"{setting.rule} · a convex problem", facts, [], [head, *rows], [chart])


def _trained(course: Course, one: Scaled) -> list[str]:
    dense = next(each for each in one.courses if each.exchange == RING)
    error = NOTHING if course.mass_error is None else f"{course.mass_error:.1e}"
    beside = f"{show_count(course.gap[-1] / dense.gap[-1])}×"
    return [course.exchange, str(course.workers), f"{course.gap[-1]:.3e}", beside, f"{course.entries:,.0f}", error]


SCALE_EXPERIMENT = Experiment(SCALE, one_line_each(SCALE, Scaled.of_plain), sections)
