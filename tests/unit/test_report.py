"""The report: one self-contained page, made from the record alone."""

from __future__ import annotations

import dataclasses
import html
import json
import random
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from thinwire.cli.main import main
from thinwire.errors import BackendError, ConfigError
from thinwire.papers.ef21.sections import EF21_EXPERIMENT, MANY
from thinwire.report.page import COLOURS, NEUTRAL, Axis, Chart, Section, lines, page_text, write_page
from thinwire.training import RunRecord, read_records, train
from thinwire.training.config import comparison
from thinwire.training.records import Point
from thinwire.training.sections import BYTES, curves, looks_of, sections, smooth
from thinwire.training.summary import summarise

RECORDS = Path(__file__).parents[2] / "docs" / "records"
CHROMIUM = shutil.which("chromium")
MEASURE = """
document.body.style.width = "{width}px"; // no window is narrower than 500
const plots = [...document.querySelectorAll(".plot")];
plots.forEach(draw);
document.title = JSON.stringify(plots.map(plot => {
  const ticks = axis => [...plot.querySelectorAll(`.tick[text-anchor=${axis}]`)].map(tick => tick.textContent);
  return {width: plot.querySelector("svg").getBoundingClientRect().width, card: plot.closest(".card").clientWidth,
          lines: plot.querySelectorAll(".line").length, ticks: [ticks("middle"), ticks("end")]};
}));
"""
"""Draws at once: a browser without a window shows no frame, and so tells no one how large a plot is."""


def render(runs: list[RunRecord]) -> str:
    return page_text(sections(runs))


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
    drawn = charts(page)
    assert [chart["x"]["title"] for chart in drawn] == ["bytes sent by a worker", "steps", "seconds", BYTES.title]
    for chart in drawn:
        assert [series["label"] for series in chart["series"]] == [row.label for row in summarise(runs)]
    assert all(
        len(series[axis]) == 20 for chart in drawn[:3] for series in chart["series"] for axis in ("x", "y", "low")
    )
    assert page.count("<details>") == len(runs)


def charts(page: str) -> list[dict[str, Any]]:
    """What the page's script draws."""
    data = re.search(r"const charts = (.*);\n", page)
    assert data is not None
    found: list[dict[str, Any]] = json.loads(data.group(1))
    return found


def test_a_page_is_small_enough_to_send(page: str) -> None:
    """The script is 10 kB; a library of charts had made it five million bytes."""
    assert len(page.encode()) < 100_000


def test_many_runs_of_a_figure_are_drawn_method_by_method_over_the_same_axes() -> None:
    runs = [one for one in EF21_EXPERIMENT.runs(RECORDS / "ef21-a9a.jsonl") if one.setting.figure == "tolerance"]
    (section,) = EF21_EXPERIMENT.sections(runs)
    assert [chart.title.partition(":")[0] for chart in section.charts[::2]] == ["EF", "EF21", "EF21+"]
    assert all(len(chart.series) <= MANY for chart in section.charts)
    assert len({chart.x.span for chart in section.charts}) == 2
    assert len({chart.y.span for chart in section.charts}) == 1
    (few,) = EF21_EXPERIMENT.sections(runs[:MANY])
    assert [len(chart.series) for chart in few.charts] == [MANY, MANY]


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, to draw the page")
@pytest.mark.parametrize("width", [420, 1400])
def test_a_browser_draws_the_charts_within_their_cards(page: str, tmp_path: Path, width: int) -> None:
    """Each in the width of its card, with every line, and no label of an axis twice."""
    plots = browse(page, tmp_path, width)
    assert len(plots) == 4
    for plot in plots:
        assert plot["width"] <= plot["card"] <= width
        assert plot["lines"] == len(METHODS)
        for labels in plot["ticks"]:
            assert len(set(labels)) == len(labels) >= 2, labels


@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium, to draw the page")
def test_labels_of_an_axis_differ_however_little_it_spans(tmp_path: Path) -> None:
    axes = [Axis("", percent=True), Axis("", log=True), Axis("", log=True, unit="B"), Axis("")]
    spans = [(0.9701, 0.9712), (0.652, 0.6524), (1_000_000, 1_004_000), (-3e-7, 12e-7), (1e-9, 5e6), (7, 7)]
    drawn = [
        Chart("", "", Axis("x", zero=True), axis, lines([("a", [0, 1], span)]))
        for axis in axes
        for span in spans
        if span[0] > 0 or not axis.log
    ]
    for plot in browse(page_text([Section("", [], [], [["a"]], drawn)], ""), tmp_path, 420):
        for labels in plot["ticks"]:
            assert len(set(labels)) == len(labels) >= 1, labels


def browse(page: str, folder: Path, width: int) -> list[dict[str, Any]]:
    """What chromium makes of each chart of the page."""
    (folder / "page.html").write_text(
        page.replace("</body>", f"<script>{MEASURE.replace('{width}', str(width))}</script></body>")
    )
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
    flags += ["--disable-background-networking", "--disable-component-update", f"--user-data-dir={folder / 'profile'}"]
    flags += [f"--window-size={width},900", "--virtual-time-budget=3000", "--dump-dom", f"file://{folder}/page.html"]
    done = subprocess.run([str(CHROMIUM), *flags], capture_output=True, text=True, timeout=100, check=True)
    found = re.search(r"<title>(\[.*?\])</title>", done.stdout)
    assert found is not None, done.stderr
    plots: list[dict[str, Any]] = json.loads(found.group(1))
    return plots


def test_text_of_the_record_cannot_become_markup(page: str) -> None:
    visible = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert "&lt;b&gt;" in visible
    assert "thinwire compare '<b>'" not in visible


def test_runs_of_several_tasks_get_a_section_each(runs: list[RunRecord]) -> None:
    other = dataclasses.replace(runs[0], config=dataclasses.replace(runs[0].config, task="digits"))
    assert render([*runs, other]).count("<h1>") == 2


def linked(run: RunRecord, rate: float | None, *courses: tuple[float, float]) -> RunRecord:
    """The run as if real processes had made it over a link, with test accuracies at those seconds."""
    points = tuple(Point(place, value, 100, seconds) for place, (seconds, value) in enumerate(courses))
    config = dataclasses.replace(run.config, engine="ddp", rate=rate)
    end = {**run.end, "seconds": courses[-1][0], "sent_bytes": 10**6, "values": {"accuracy": courses[-1][1]}}
    return dataclasses.replace(run, config=config, metrics=points, end=end)


def test_over_a_link_time_to_what_dense_reached_is_told(runs: list[RunRecord]) -> None:
    dense, ours, other = runs[0], runs[2], runs[4]
    over = [
        linked(dense, 1e6, (4.0, 0.5), (8.0, 0.795), (12.0, 0.8)),
        linked(ours, 1e6, (1.0, 0.7), (2.0, 0.793), (3.0, 0.81)),
        linked(other, 1e6, (1.0, 0.7), (2.0, 0.75), (3.0, 0.76)),
    ]
    bare = [linked(dense, None, (1.0, 0.8)), linked(ours, None, (2.0, 0.81))]
    behind, without = sections([*over, *bare])
    assert behind.title.endswith("emulated link, 1 Mbit/s")
    assert without.title.endswith("no link, bare loopback")
    assert [row[-1] for row in behind.table] == ["time to\ndense", "8.00 s", "2.00 s", "not reached"]
    assert [row[-3] for row in behind.table] == ["ms\na step", "600", "150", "150"]
    assert behind.charts[0].title == "Test accuracy against seconds"
    assert list(behind.charts[0].series[1].x) == [1.0, 2.0, 3.0]
    (sooner,) = [sentence for sentence in behind.sentences if "came within" in sentence]
    assert sooner == (
        f"{ours.config.method} came within 1% of the dense run's last test accuracy after 2.00 s; dense after 8.00 s, "
        "4.00 times as long."
    )
    assert any("Compression paid over this emulated link" in sentence for sentence in behind.sentences)
    assert any("the dense run's bytes alone take 8.00 s on this link" in sentence for sentence in behind.sentences)
    assert any("Compression did not pay in wall time here" in sentence for sentence in without.sentences)
    assert any("emulated link hands out" in note for note in behind.notes)


def test_over_a_link_a_loss_is_told_too(runs: list[RunRecord]) -> None:
    dense = linked(runs[0], 1e6, (4.0, 0.5), (9.0, 0.8))
    (worse,) = sections([dense, linked(runs[2], 1e6, (4.0, 0.5), (8.5, 0.7))])
    assert any("Of thinwire's methods none came within 1%" in sentence for sentence in worse.sentences)
    assert any("whether compression pays" in sentence.lower() for sentence in worse.sentences)
    (later,) = sections([dense, linked(runs[2], 1e6, (8.0, 0.5), (18.0, 0.8))])
    assert any("dense after 9.00 s, 0.50 times as long." in sentence for sentence in later.sentences)


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
    looks = looks_of(summarise(runs))
    assert [look.colour for look in looks] == [NEUTRAL, *COLOURS[:2]]


def test_the_page_is_written_where_asked_or_refused(runs: list[RunRecord], tmp_path: Path) -> None:
    write_page(sections(runs), tmp_path / "deep" / "page.html")
    assert (tmp_path / "deep" / "page.html").read_text().startswith("<!doctype html>")
    with pytest.raises(ConfigError, match="cannot be written: Is a directory"):
        write_page(sections(runs), tmp_path)


def test_a_missing_package_names_the_extra(runs: list[RunRecord], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "jinja2"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(BackendError, match=r"pip install 'thinwire\[report\]'"):
        render(runs)


def test_the_same_record_gives_the_same_page(runs: list[RunRecord], page: str) -> None:
    assert render(runs) == page


def test_reading_a_record_back_changes_nothing(runs: list[RunRecord], tmp_path: Path) -> None:
    settings = {"engine": "sim", "workers": 1, "steps": 2, "evaluations": 1}
    written = train(comparison("logistic", ["dense"], [0], **settings), tmp_path / "r.jsonl")
    assert read_records([tmp_path / "r.jsonl"]) == written


# -------------------------------------------------------------------------------------- every record that was ever kept


@pytest.mark.parametrize("path", sorted(RECORDS.rglob("*.jsonl")), ids=lambda path: path.stem)
def test_every_kept_record_is_drawn_whole_and_cut_off_anywhere(path: Path, tmp_path: Path) -> None:
    """Cut off at bytes by chance: behind its first run it is drawn, before that it is refused in words."""
    page, cut = tmp_path / "p.html", tmp_path / "cut.jsonl"
    assert main(["report", str(path), "--out", str(page)]) == 0
    content = path.read_bytes()
    first = len(b"".join(content.splitlines(keepends=True)[:2]))
    chance = random.Random(path.name)
    for end in (chance.randrange(1, first - 1), chance.randint(first, len(content)), len(content) - 1):
        cut.write_bytes(content[:end])
        code = main(["report", str(cut), "--out", str(page), "--force"])
        assert code == 0 if end >= first else code in (0, 2)
        if end >= first:
            assert "<td>" in page.read_text()


def test_records_of_all_commands_stand_on_one_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "p.html"
    names = ("ef21-libsvm", "ef21-digits", "memsgd", "vgc-cifar10-adam")
    assert main(["report", *(str(RECORDS / f"{name}.jsonl") for name in names), "--out", str(page)]) == 0
    assert f"({16 + 9 + 152 + 7} runs)" in capsys.readouterr().out
    text = html.unescape(page.read_text())
    for title in ("EF21 · Tuned methods · phishing", "digits", "Mem-SGD · Theory's step sizes", "VGC · cifar10"):
        assert f"<h1>{title}" in text
    assert "Claim: VGC loses at most 0.5 points" in text


def test_a_head_without_runs_is_told_and_not_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "r.jsonl").write_text('{"kind":"ef21","format":1,"provenance":{}}\n')
    assert main(["report", str(tmp_path / "r.jsonl"), "--out", str(tmp_path / "p.html")]) == 2
    assert "no run came to its end" in " ".join(capsys.readouterr().err.split())


def test_a_note_is_said_once_on_a_page() -> None:
    section = Section("", [], [], [["a"]], [], notes=["how to read it"])
    assert page_text([section, section]).count("how to read it") == 1
