"""An experiment of one's own, written outside the package: its record is written, read, resumed and drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest

from thinwire.cli.main import main
from thinwire.errors import ConfigError, RecordError
from thinwire.papers import EXPERIMENTS, Experiment, read_sections, register
from thinwire.report import Axis, Chart, Section, Writer, lines, one_line_each

# ------------------------------------------------------------------------------------- what an author writes: 30 lines


@dataclass(frozen=True)
class Halving:
    """A run: a number halved so many times."""

    start: float
    course: tuple[float, ...]

    def plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def of_plain(cls, line: dict[str, Any]) -> Halving:
        return cls(line["start"], tuple(line["course"]))


def halve(start: float, steps: int) -> Halving:
    return Halving(start, tuple(start / 2**step for step in range(steps)))


def sections(runs: Sequence[Halving]) -> list[Section]:
    table = [["start", "end"], *([f"{run.start:g}", f"{run.course[-1]:g}"] for run in runs)]
    courses = [(f"from {run.start:g}", [*range(len(run.course))], run.course) for run in runs]
    chart = Chart("Halving", "each step by two", Axis("steps", noun="steps"), Axis("", log=True), lines(courses))
    return [Section("Numbers, halved", ["exact"], [f"{len(runs)} numbers were halved."], table, [chart])]


HALVING = Experiment("halving", one_line_each("halving", Halving.of_plain), sections)


# ---------------------------------------------------------------------------------------------------- what then follows


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    register(HALVING)
    yield
    EXPERIMENTS.pop("halving", None)


@pytest.fixture
def record(tmp_path: Path) -> Path:
    path = tmp_path / "h.jsonl"
    writer = Writer(path, "halving", ["python", "halving.py"])
    for start in (8.0, 3.0):
        writer.add(halve(start, 4))
    writer.close()
    return path


def test_the_record_is_read_back_and_gone_on_with(record: Path) -> None:
    assert HALVING.runs(record) == [halve(8.0, 4), halve(3.0, 4)]
    writer = Writer(record, "halving", [], resume=True)
    writer.add(halve(5.0, 2))
    writer.close()
    assert HALVING.runs(record)[2:] == [halve(5.0, 2)]
    assert record.read_text().count('"provenance"') == 1


def test_thinwire_report_draws_it_alone_and_among_others(record: Path, tmp_path: Path) -> None:
    page = tmp_path / "p.html"
    assert main(["report", str(record), "--out", str(page)]) == 0
    assert "Numbers, halved" in page.read_text()
    assert "2 numbers were halved." in page.read_text()
    training = Path(__file__).parents[2] / "docs" / "records" / "ef21-digits.jsonl"
    assert main(["report", str(training), str(record), "--out", str(page), "--force"]) == 0
    assert page.read_text().count("<h1>") == 2


def test_a_record_that_was_cut_off_is_drawn_as_far_as_it_goes(record: Path, tmp_path: Path) -> None:
    record.write_bytes(record.read_bytes()[:-20])
    assert main(["report", str(record), "--out", str(tmp_path / "p.html")]) == 0
    assert "1 numbers were halved." in (tmp_path / "p.html").read_text()


def test_a_run_that_is_none_and_an_unknown_experiment_are_told(record: Path) -> None:
    record.write_text(record.read_text().replace('"start":3.0,', ""))
    with pytest.raises(RecordError, match=r"line 3: not a run of the experiment 'halving' \(KeyError\('start'\)\)"):
        read_sections([record])
    del EXPERIMENTS["halving"]
    with pytest.raises(RecordError, match=r"'halving' is not known; known are training, ef21, memsgd, vgc.*--plugin"):
        read_sections([record])


def test_a_name_is_given_once() -> None:
    register(HALVING)  # the same again is no mistake: a file may be read twice
    with pytest.raises(ConfigError, match="the experiment 'ef21' is registered already"):
        register(Experiment("ef21", HALVING.read, sections))
