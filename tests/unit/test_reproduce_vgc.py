"""`thinwire reproduce vgc`: its runs, its record, its table, and what becomes of a run that is cut off."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from thinwire.cli.main import main
from thinwire.errors import ConfigError, OptimizerWarning, RecordError
from thinwire.papers.vgc.claims import TABLE, claims, paper_row
from thinwire.papers.vgc.sections import NOTES, results, sections
from thinwire.papers.vgc.settings import CIFAR10, SMALL, split_methods, vgc_configs
from thinwire.training import RunRecord, read_records, train
from thinwire.training.formatting import NOTHING, show_metric, show_ratio
from thinwire.training.records import finished_runs

QUICK = ["reproduce", "vgc", "--small", "--epochs", "1", "--methods", "none, vgc(1.5), hybrid(0.01, alpha=2)"]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vgc") / "r.jsonl"
    methods = ["none", "vgc(1.5)", "qsgd(3, 128)", "memsgd(strom(0.01))"]
    with pytest.warns(OptimizerWarning, match=r"memsgd\(strom\(0.01\)\).* Adam"):
        train(vgc_configs(SMALL, "adam", methods=methods, epochs=1), path)
    return path


# ----------------------------------------------------------------------------------------------------------- the runs


def test_the_default_runs_are_the_papers_table() -> None:
    configs = vgc_configs(CIFAR10, "momentum")
    assert [config.method for config in configs] == [row.method for row in TABLE]
    for config in configs:
        assert (config.workers, config.batch, config.weight_decay) == (8, 64, 5e-4)
        assert config.steps == 300 * 98
        assert (config.lr, config.schedule) == (0.4, "halving")
    both = vgc_configs(CIFAR10, "momentum", methods=["none", "dgc(topk(0.001))"])
    assert [one.optimizer for one in both] == ["momentum", "sgd"]  # DGC brings the momentum
    assert len({one.lr for one in both}) == 1
    adam = vgc_configs(CIFAR10, "adam", epochs=2)[0]
    assert (adam.lr, adam.schedule, adam.steps, adam.evaluations) == (1e-3, "constant", 196, 2)


def test_a_setting_that_the_paper_does_not_have_is_refused() -> None:
    with pytest.raises(ConfigError, match="one of adam, momentum, adamw, got 'sgd'"):
        vgc_configs(SMALL, "sgd")
    with pytest.raises(ConfigError, match="epochs must be at least 1, got 0"):
        vgc_configs(SMALL, "adam", epochs=0)


def test_methods_are_split_at_commas_outside_parentheses() -> None:
    assert split_methods("none,hybrid(0.1, alpha=2), qsgd(3, 128)") == ["none", "hybrid(0.1, alpha=2)", "qsgd(3, 128)"]


def test_the_paper_is_found_by_the_method_however_it_is_written() -> None:
    row = paper_row(vgc_configs(SMALL, "adam", methods=["hybrid(alpha=2, tau=0.1)"])[0].method)
    assert row is not None
    assert (row.printed("adam").accuracy.value, row.printed("momentum").ratio.value) == (88.2, 12396.8)
    assert paper_row("vgc(3.0)") is None
    uncertain = [row.label for row in TABLE if not row.printed("momentum").accuracy.certain]
    assert uncertain == ["VGC α = 1", "VGC α = 1.5", "VGC α = 2"]


# ---------------------------------------------------------------------------------------------------- record and result


def test_the_record_holds_the_three_ratios(record: Path) -> None:
    none, vgc, qsgd, strom = results(read_records([record]))
    assert (none.label, vgc.label, strom.label) == ("none", "VGC α = 1.5", "Strom τ = 0.01")
    for one in (none, vgc, qsgd, strom):
        plain = one.plain()
        assert json.loads(json.dumps(plain)) == plain
        assert plain["steps"] == 12
    assert none.plain()["ratio_elements"] == none.plain()["ratio_effective"] == 1
    found = vgc.plain()
    assert found["ratio_elements"] > 1
    assert found["ratio_message"] > found["ratio_elements"]
    assert found["ratio_effective"] == pytest.approx(2 * 7 * found["ratio_elements"] / 64)
    assert found["paper"]["accuracy"] == {"value": 88.9, "certain": True}
    found = qsgd.plain()  # of 3 levels in blocks of 128 at most 3 (3 + sqrt(128)) are not zero on average
    assert found["ratio_elements"] > 128 / (3 * (3 + 128**0.5))
    assert found["ratio_effective"] == pytest.approx(2 * 7 * found["ratio_elements"] / 64)


def test_the_table_shows_every_ratio_and_says_why_none_has_one(record: Path) -> None:
    (section,) = sections(read_records([record]))
    _, *rows = section.table
    assert NOTHING not in [cell for row in rows for cell in row[2:5]]
    assert rows[0][4] == "1.00×"
    assert section.notes == NOTES
    assert "none is that all-reduce itself: 1" in NOTES[0]


def test_the_claim_speaks_of_ratios_of_a_hundred_only(record: Path) -> None:
    found = results(read_records([record]))
    assert claims(found)[0].startswith("Claim: VGC loses at most 0.5 points")
    assert claims(found)[1].endswith("below 100, so the claim says nothing of it.")
    assert claims(found[1:]) == []


# ------------------------------------------------------------------------------------------------------------- resuming


def test_a_cut_record_keeps_its_finished_runs_and_goes_on(record: Path, tmp_path: Path) -> None:
    lines = record.read_bytes().splitlines(keepends=True)
    whole = read_records([record])
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(b"".join(lines[:-5]) + lines[-5][:30])
    configs = [run.config for run in whole]
    heard: list[Mapping[str, Any]] = []
    with pytest.warns(OptimizerWarning, match="memsgd"):
        runs = train(configs, cut, listener=heard.append, resume=True)
    assert [line["config"]["method"] for line in heard if line["kind"] == "run"] == [configs[-1].method]
    assert [_values(run) for run in runs] == [_values(run) for run in whole]
    assert train(configs, cut, listener=heard.append, resume=True) == runs


def _values(run: RunRecord) -> list[tuple[int, float | None, int]]:
    """All that was measured but the time."""
    return [(point.step, point.value, point.sent_bytes) for point in (*run.losses, *run.metrics)]


def test_a_file_that_is_no_record_is_left_as_it_is(tmp_path: Path) -> None:
    precious = tmp_path / "thesis.tex"
    precious.write_text("ten years of work\n")
    with pytest.raises(RecordError):
        train(vgc_configs(SMALL, "adam", epochs=1), precious, resume=True)
    assert precious.read_text() == "ten years of work\n"
    assert finished_runs(tmp_path / "none.jsonl") == []


def test_a_record_of_another_experiment_is_not_gone_on_with(tmp_path: Path) -> None:
    """Its runs are no training runs; the message says so."""
    other = tmp_path / "ef21.jsonl"
    other.write_text('{"kind":"ef21","format":1,"provenance":{}}\n{"kind":"run","setting":{}}\n')
    before = other.read_text()
    told = r"ef21.jsonl, line 2: malformed: no training run, but one of another experiment"
    with pytest.raises(RecordError, match=told):
        train(vgc_configs(SMALL, "adam", epochs=1), other, resume=True)
    with pytest.raises(RecordError, match=told):
        read_records([other])
    with pytest.raises(ConfigError, match="exists already"):
        train(vgc_configs(SMALL, "adam", epochs=1), other)
    assert other.read_text() == before


# ----------------------------------------------------------------------------------------------------- the command line


@pytest.fixture
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")
    monkeypatch.delenv("THINWIRE_DATA", raising=False)


@pytest.mark.usefixtures("_elsewhere")
def test_the_small_version_prints_a_table_beside_the_paper(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*QUICK, "--out", "r.jsonl", "--page", "r.html"]) == 0
    out = capsys.readouterr().out
    assert "digits · 8 workers of 16 · adam at 0.001 · 1 epoch (12 steps)" in out
    for words in ("VGC α = 1.5", "453.3×", "1,942.2×", "effective", "Claim: VGC loses", "record: r.jsonl"):
        assert words in out
    assert "hybrid" in Path("r.html").read_text()
    assert main([*QUICK, "--out", "r.jsonl", "--resume", "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["label"] for row in rows] == ["none", "VGC α = 1.5", "hybrid τ = 0.01, α = 2"]


@pytest.mark.usefixtures("_elsewhere")
@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ([], "CIFAR-10 was not found"),
        (["--data", "nowhere"], "--small` needs no such data"),
        (["--small", "--data", "nowhere"], "--small brings its own data"),
        (["--small", "--resume"], "give --out as well"),
        (["--small", "--methods", "vgc(0)"], "vgc(0)"),
        (["--small", "--device", "tpu"], "device must be one of cpu, cuda"),
    ],
)
def test_what_cannot_be_run_is_refused(words: list[str], problem: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "vgc", *words]) == 2
    assert problem in capsys.readouterr().err
    assert not list(Path().glob("runs/*"))


@pytest.mark.usefixtures("_elsewhere")
def test_an_interruption_keeps_what_was_done(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from thinwire.training.run import SimulatedRun

    original = SimulatedRun.step

    def step(self: SimulatedRun, number: int) -> None:
        if self.config.method.startswith("hybrid") and number == 5:
            raise KeyboardInterrupt
        original(self, number)

    monkeypatch.setattr(SimulatedRun, "step", step)
    assert main([*QUICK, "--out", "r.jsonl"]) == 130
    shown = capsys.readouterr()
    assert "VGC α = 1.5" in shown.out
    assert "--resume --out r.jsonl" in shown.err
    assert len(read_records([Path("r.jsonl")])) == 2


# -------------------------------------------------------------------------------------------------- what was found


def test_the_documented_table_is_that_of_its_record() -> None:
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "reproduce.md").read_text()
    found = results(read_records([docs / "records" / "vgc-cifar10-adam.jsonl"]))
    assert len(found) == 7
    for one in found:
        ratios = (one.row.ratio_elements, one.row.ratio_message, one.row.ratio_effective)
        cells = [one.label, show_metric(one.row), *(show_ratio(ratio) for ratio in ratios)]
        assert f"| {' | '.join(cells)} |" in page


def test_the_documented_means_are_those_of_the_longer_record() -> None:
    docs = Path(__file__).parents[2] / "docs"
    lines = (docs / "records" / "vgc-cifar10-96.jsonl").read_text().splitlines()
    runs: list[dict[int, float]] = []
    for line in map(json.loads, lines):
        if line["kind"] == "run":
            runs.append({})
        elif line["kind"] == "eval":
            runs[-1][line["step"] // 98] = line["values"]["accuracy"]
    page = (docs / "reproduce.md").read_text()
    for first, last in ((24, 28), (44, 48), (60, 64), (76, 80), (91, 95)):
        means = [100 * sum(run[epoch] for epoch in range(first, last + 1)) / 5 for run in runs]
        assert f"| {first} to {last} | {' | '.join(f'{mean:.1f} %' for mean in means)} |" in page
