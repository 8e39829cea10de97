"""The report: one self-contained page, made from the record alone."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from thinwire.errors import BackendError, ConfigError
from thinwire.experiments import RunRecord, read_records, train
from thinwire.experiments.compare import comparison
from thinwire.experiments.summary import summarise
from thinwire.report.curves import curves, smooth
from thinwire.report.page import check_report_packages, render, write_page
from thinwire.report.palette import COLOURS, NEUTRAL, styles

METHODS = ["dense", "memsgd(topk(0.1))", 'route({"bias": identity(), "*": ef21(topk(0.1))})']


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[RunRecord]:
    path = tmp_path_factory.mktemp("record") / "r.jsonl"
    settings = {"engine": "sim", "workers": 2, "steps": 20, "evaluations": 4}
    return train(comparison("logistic", METHODS, [0, 1], **settings), path, ["thinwire", "compare", "<b>"])


@pytest.fixture(scope="module")
def page(runs: list[RunRecord]) -> str:
    return render(runs)


class Reader(HTMLParser):
    """Collects what a browser would fetch, and the cells of the tables."""

    def __init__(self) -> None:
        super().__init__()
        self.fetched: list[str] = []
        self.cells: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data: str) -> None:
        if "td" in self.open and data.strip():
            self.cells.append(data.strip())

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop() != tag:
            pass


def test_the_page_fetches_nothing(page: str) -> None:
    reader = Reader()
    reader.feed(page)
    assert reader.fetched == []
    assert "@import" not in re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)


def test_the_table_shows_every_method_and_its_figures(page: str, runs: list[RunRecord]) -> None:
    reader = Reader()
    reader.feed(page)
    for row in summarise(runs):
        assert row.label in reader.cells
    assert "1.00×" in reader.cells
    assert sum("±" in cell for cell in reader.cells) == len(METHODS)


def test_the_charts_hold_every_method_and_the_provenance_every_run(page: str, runs: list[RunRecord]) -> None:
    data = re.search(r"const sections = (.*);\n", page)
    assert data is not None
    (section,) = json.loads(data.group(1))
    assert [series["label"] for series in section["series"]] == [row.label for row in summarise(runs)]
    assert all(len(series["loss"]["mean"]) == 20 for series in section["series"])
    assert {(x, y) for x in ("bytes", "steps", "seconds") for y in ["loss"]} <= set(
        re.findall(r'data-x="(\w+)" data-y="(\w+)"', page)
    )
    assert page.count("<details>") == len(runs)


def test_text_of_the_record_cannot_become_markup(page: str) -> None:
    visible = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "&lt;b&gt;" in visible
    assert "thinwire compare '<b>'" not in visible


def test_runs_of_several_tasks_get_a_section_each(runs: list[RunRecord]) -> None:
    other = dataclasses.replace(runs[0], config=dataclasses.replace(runs[0].config, task="digits"))
    assert render([*runs, other]).count("<h1>") == 2


def test_a_diverged_run_is_drawn_as_far_as_it_got(runs: list[RunRecord]) -> None:
    last = dataclasses.replace(runs[0].losses[9], value=None)
    broken = dataclasses.replace(
        runs[0], losses=(*runs[0].losses[:9], last), metrics=(), end={**runs[0].end, "status": "diverged", "values": {}}
    )
    (row,) = summarise([broken])
    assert len(curves(row)["loss"]["mean"]) == 9
    assert "diverged" in render([broken])


def test_a_course_is_the_mean_over_seeds_with_its_range(runs: list[RunRecord]) -> None:
    row = summarise(runs)[0]
    metric: dict[str, Any] = curves(row)["metric"]
    first, second = (run.metrics[0].value for run in row.runs)
    assert first is not None
    assert second is not None
    assert metric["mean"][0] == pytest.approx((first + second) / 2)
    assert (metric["low"][0], metric["high"][0]) == (min(first, second), max(first, second))
    assert metric["steps"] == [5.0, 10.0, 15.0, 20.0]


def test_smoothing_keeps_a_constant_and_the_inner_part_of_a_ramp() -> None:
    assert smooth([2.0] * 50, 0.2) == [2.0] * 50
    ramp = [float(x) for x in range(50)]
    assert smooth(ramp, 0.2)[5:-5] == pytest.approx(ramp[5:-5])
    assert smooth(ramp, 0.0) == ramp
    assert smooth([], 0.2) == []


def test_our_methods_get_colours_and_torchs_own_grey(runs: list[RunRecord]) -> None:
    looks = styles(summarise(runs))
    assert [look["colour"] for look in looks] == [NEUTRAL, *COLOURS[:2]]


def test_the_page_is_written_where_asked_or_refused(runs: list[RunRecord], tmp_path: Path) -> None:
    write_page(runs, tmp_path / "deep" / "page.html")
    assert (tmp_path / "deep" / "page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        write_page(runs, tmp_path)


@pytest.mark.parametrize("package", ["plotly", "jinja2"])
def test_a_missing_package_names_the_extra(
    package: str, runs: list[RunRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    for action in (check_report_packages, lambda: render(runs)):
        with pytest.raises(BackendError, match=r"pip install 'thinwire\[report\]'"):
            action()


def test_the_same_record_gives_the_same_page(runs: list[RunRecord], page: str) -> None:
    assert render(runs) == page


def test_reading_a_record_back_changes_nothing(runs: list[RunRecord], tmp_path: Path) -> None:
    settings = {"engine": "sim", "workers": 1, "steps": 2, "evaluations": 1}
    written = train(comparison("logistic", ["dense"], [0], **settings), tmp_path / "r.jsonl")
    assert read_records([tmp_path / "r.jsonl"]) == written
