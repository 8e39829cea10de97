"""The EF21 experiments on small data: settings, runs, bits, records, the command and its page."""

from __future__ import annotations

import html
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from thinwire import parse, simulate
from thinwire.bench import simulation
from thinwire.cli.main import main
from thinwire.errors import ConfigError, RecordError
from thinwire.papers.ef21 import runs as running
from thinwire.papers.ef21.runs import EF21Run, honest_bits, paper_bits, run
from thinwire.papers.ef21.sections import EF21_EXPERIMENT
from thinwire.papers.ef21.settings import FIGURES, POSTER, EF21Setting, settings
from thinwire.problems import file_order, load_dataset, logistic_regression
from thinwire.problems.minibatches import Minibatches
from thinwire.training.formatting import show_ratio, show_spread
from thinwire.training.records import read_records
from thinwire.training.summary import summarise

CANCER = "breast_cancer"


def setting(rule: str, k: int, **more: Any) -> EF21Setting:
    return EF21Setting("tuned", CANCER, rule, rule, 1.0, k, 50, **more)


def test_every_setting_is_a_method() -> None:
    for one in settings([*POSTER, CANCER], list(FIGURES), 100):
        parse(one.rule)
        assert one.rounds <= 100
    with pytest.raises(ConfigError, match="unknown figure 'tune'; the figures are tuned, tolerance"):
        settings([CANCER], ["tune"], 10)
    with pytest.raises(ConfigError, match="at least 1, got 0"):
        settings([CANCER], ["tuned"], 0)


def test_bits_as_the_paper_counts_and_honestly() -> None:
    """d = 30: positions take 5 bits; the start with whole gradients 32 d, in place of the first message."""
    assert paper_bits(setting("ef21(topk(count=2))", 2), 30, 10) == 640
    assert honest_bits(setting("ef21(topk(count=2))", 2), 30, 10) == 32 * 30 + 9 * 2 * 37
    assert honest_bits(setting("ef21plus(topk(count=2))", 2), 30, 10) == 32 * 30 + 9 * (2 * 37 + 1)
    assert honest_bits(setting("memsgd(topk(count=2))", 2), 30, 10) == 10 * 2 * 37
    assert paper_bits(setting("identity()", 0), 30, 10) == honest_bits(setting("identity()", 0), 30, 10) == 9600
    half = setting("ef21pp(topk(count=2), 0.5)", 2)
    assert paper_bits(half, 30, 10) == 320
    both = setting("ef21bc(topk(count=2), topk(count=3))", 2, down=3)
    assert paper_bits(both, 30, 10) == 32 * 5 * 10
    assert honest_bits(both, 30, 10) == 32 * 30 + 9 * 2 * 37 + 32 * 30 + 9 * 3 * 37
    model = setting("ef21p(ef21(topk(count=2)), topk(count=3))", 2, down=3)
    assert paper_bits(model, 30, 10) == paper_bits(both, 30, 10)
    assert honest_bits(model, 30, 10) == 32 * 30 + 9 * 2 * 37 + 10 * 3 * 37
    assert paper_bits(setting("ef21(topk(count=2))", 2, down=0), 30, 10) == 32 * 32 * 10
    assert honest_bits(both, 30, 0) == 0


def test_a_run_stops_at_its_last_tolerance() -> None:
    (descent,) = [one for one in settings([CANCER], ["tuned"], 600) if one.label.startswith("GD")]
    outcome = run(descent)
    assert outcome.status == "reached"
    assert outcome.rounds == outcome.reached[-1].rounds
    assert [one.rounds for one in outcome.reached] == sorted(one.rounds or 0 for one in outcome.reached)
    assert outcome.curve[-1][0] == outcome.rounds
    assert outcome.step == pytest.approx(1 / running.problem_of("logistic", CANCER, None, 20)[1].pooled)


def test_a_run_that_diverges_says_so() -> None:
    outcome = run(EF21Setting("pl", CANCER, "GD", "identity()", 10, 0, 200, problem="least-squares"))
    assert outcome.status == "diverged"
    assert all(one.rounds is None for one in outcome.reached)


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_runs(figure: str) -> None:
    for one in [one for one in settings([CANCER], [figure], 4) if one.obstacle(569, 30) is None][-2:]:
        outcome = run(one)
        assert outcome.rounds == 4
        assert math.isfinite(outcome.best)


def test_batches_are_drawn_anew_and_without_replacement() -> None:
    data = load_dataset(CANCER)
    problem = logistic_regression(data, file_order(len(data), 7))
    batches = Minibatches(problem, 0.25, seed=3)
    first, again, other = batches.draw(0), batches.draw(0), batches.draw(1)
    assert first.tolist() == again.tolist() != other.tolist()
    assert len(set(first.tolist())) == len(first) == batches.counts.sum()
    owners = np.searchsorted(problem.offsets, first, side="right") - 1
    assert np.bincount(owners).tolist() == batches.counts.tolist()
    x = batches.start()
    rows = batches.all_gradients(x, 2)["x"]
    for worker in range(7):
        own = batches.gradient(worker, x, 2)["x"]
        assert rows[worker].numpy() == pytest.approx(own.numpy(), rel=1e-13)  # the order of sums differs in dense rows
    with pytest.raises(ConfigError, match=r"\(0, 1\], got 0"):
        Minibatches(problem, 0.0)


def test_the_mean_of_many_batches_is_the_gradient() -> None:
    data = load_dataset(CANCER)
    batches = Minibatches(logistic_regression(data, file_order(len(data), 3)), 0.2)
    x = batches.start()
    draws = np.stack([batches.all_gradients(x, step)["x"].numpy() for step in range(400)])
    error = np.abs(draws.mean(0) - batches.all_full_gradients(x)["x"].numpy())
    assert (error < 5 * draws.std(0) / math.sqrt(400)).all()


def test_page_on_batches_of_everything_is_ef21() -> None:
    data = load_dataset(CANCER)
    problem = logistic_regression(data, file_order(len(data), 3))
    runs = [
        simulate(subject, parse(rule), steps=30, step_size=0.05, beyond_theory=True).x["x"]
        for subject, rule in (
            (problem, "ef21(topk(count=2))"),
            (Minibatches(problem, 1.0), "ef21page(topk(count=2), 1.0)"),
        )
    ]
    assert runs[0].tolist() == runs[1].tolist()


def test_the_command_writes_a_record_a_table_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, page = tmp_path / "r.jsonl", tmp_path / "p.html"
    words = ["reproduce", "ef21", "--dataset", CANCER, "--figures", "tuned", "--rounds", "30", "--out", str(record)]
    assert main([*words, "--page", str(page)]) == 0
    shown = capsys.readouterr().out
    assert "Tuned methods · breast_cancer" in shown
    assert "EF21 k=1, 128×" in shown
    outcomes = EF21_EXPERIMENT.runs(record)
    assert [one.setting.label for one in outcomes] == ["EF21 k=1, 128×", "EF k=1, 64×", "EF21+ k=1, 512×", "GD 1×"]
    assert "against bits" in page.read_text()
    before = record.read_text()
    assert main([*words, "--resume", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["setting"]["label"] for line in lines] == [one.setting.label for one in outcomes]
    assert record.read_text() == before


def test_multiples_of_different_units_are_said_to_be_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """EF21+'s unit, theorem 2's step with μ = 0.1, is another than EF21's: under the table and on the page."""
    page = tmp_path / "p.html"
    words = ["reproduce", "ef21", "--dataset", CANCER, "--figures", "tuned", "--rounds", "2", "--page", str(page)]
    assert main([*words, "--out", str(tmp_path / "r.jsonl")]) == 0
    said = "theorem 2's with μ = 0.1, which is about √2 smaller, for EF21+"
    assert said in " ".join(capsys.readouterr().out.split())
    assert said in html.unescape(page.read_text())


def test_only_runs_that_the_data_allow_are_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """d = 30: k = 32 of the figure k is left out. Names of figures may have spaces between them."""
    words = ["reproduce", "ef21", "--dataset", CANCER, "--rounds", "1", "--json"]
    assert main([*words, "--figures", "tuned, k", "--out", str(tmp_path / "r.jsonl")]) == 0
    lines = [json.loads(line)["setting"] for line in capsys.readouterr().out.splitlines()]
    assert [one["k"] for one in lines if one["figure"] == "k"] == [1, 2, 4, 8, 16]
    with pytest.raises(ConfigError, match="a message of 31 numbers is more than the 30 that there are"):
        run(setting("ef21(topk(count=31))", 31))


def test_least_squares_on_wide_data_is_left_out_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """30 rows of 40 columns, where μ is found up to 8: a word where all figures are run, an error where this one is
    asked for."""
    for module in ("thinwire.theory.smoothness", "thinwire.papers.ef21.settings"):
        monkeypatch.setattr(f"{module}.DENSE_SIDE", 8)
    path, record = tmp_path / "wide.txt", tmp_path / "r.jsonl"
    path.write_text("".join(f"{i % 2} {1 + i}:1 40:{i}.5\n" for i in range(30)))
    words = ["reproduce", "ef21", "--data", str(path), "--rounds", "1", "--json"]
    problem = "figure pl of wide cannot be run: μ and f* of least squares are found up to 8 rows or columns"
    assert main([*words, "--figures", "pl", "--out", str(record)]) == 2
    assert f"{problem}, these data have 30 and 40; leave it out of --figures" in " ".join(
        capsys.readouterr().err.split()
    )
    assert not record.exists()
    assert main([*words, "--out", str(record)]) == 0
    said = " ".join(capsys.readouterr().err.split())
    assert f"{problem}, these data have 30 and 40; it is left out" in said
    assert "figure participation of wide cannot be run: 100 workers share 30 rows" in said
    ran = {one.setting.figure for one in EF21_EXPERIMENT.runs(record)}
    assert ran == set(FIGURES) - {"pl", "participation"}
    with pytest.raises(ConfigError, match="found up to 8 rows or columns"):
        run(settings(["wide"], ["pl"], 1)[0], str(path))


def test_the_least_value_is_found_once_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    solve = running.least_squares_minimiser
    monkeypatch.setattr(running, "least_squares_minimiser", lambda problem: calls.append(problem) or solve(problem))
    running.least_of.cache_clear()
    for one in settings([CANCER], ["pl"], 2):
        run(one)
    assert len(calls) == 1


def test_a_path_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Records and pages are passed on: a file is called by its name, whether it comes by --data or by --dataset."""
    rows = "".join(f"{i % 2} 1:{i} {2 + i % 3}:1\n" for i in range(40))
    (tmp_path / "mine.txt").write_text(rows)
    path = str(tmp_path / "mine.txt")
    for place, words in enumerate((["--data", path], ["--dataset", path])):
        record, page = tmp_path / f"{place}.jsonl", tmp_path / f"{place}.html"
        options = ["--figures", "tuned", "--rounds", "2", "--out", str(record), "--page", str(page)]
        assert main(["reproduce", "ef21", *words, *options]) == 0
        assert {one.setting.dataset for one in EF21_EXPERIMENT.runs(record)} == {"mine"}
        runs = record.read_text().partition("\n")[2]  # the first line holds the command, as it was given
        assert str(tmp_path) not in runs + page.read_text()
    assert main(["reproduce", "ef21", "--data", path, "--dataset", "other", "--rounds", "2"]) == 2
    assert "--data names one file, mine; it does not hold other" in " ".join(capsys.readouterr().err.split())
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "mine.txt").write_text(rows)
    assert main(["reproduce", "ef21", "--dataset", f"{path},{tmp_path / 'x' / 'mine.txt'}"]) == 2
    assert "two data sets are called 'mine'" in capsys.readouterr().err


def test_a_record_that_exists_is_gone_on_with_or_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "r.jsonl"
    words = ["reproduce", "ef21", "--dataset", CANCER, "--figures", "tuned", "--rounds", "1", "--out", str(record)]
    foreign = {
        '{"kind":"memsgd","format":1,"provenance":{}}\n': "a record of the experiment 'memsgd', and not of 'ef21'",
        "a diary\n": "malformed: not a JSON object",
        '{"kind": "run", "format": 1}\n': "a record of the experiment 'training', and not of 'ef21'",
    }
    for content, problem in foreign.items():
        record.write_text(content)
        assert main(words) == 2
        assert "exists already: --resume goes on with it" in " ".join(capsys.readouterr().err.split())
        assert main([*words, "--resume"]) == 2
        assert f"line 1: {problem}" in " ".join(capsys.readouterr().err.split())
        assert record.read_text() == content
    record.write_text("")  # nothing is lost
    assert main(words) == 0
    assert len(EF21_EXPERIMENT.runs(record)) == 4


def test_refused_data_leave_no_record(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "three").write_text("".join(f"{i % 3} 1:{i}\n" for i in range(30)))
    words = ["--data", str(tmp_path), "--dataset", "three", "--figures", "tuned", "--out", str(tmp_path / "r.jsonl")]
    assert main(["reproduce", "ef21", *words]) == 2
    assert "has 3 classes" in capsys.readouterr().err
    assert not (tmp_path / "r.jsonl").exists()


def test_ctrl_c_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, calls = tmp_path / "r.jsonl", []

    def interrupted(one: EF21Setting, *more: object) -> EF21Run:
        calls.append(one)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(one)

    monkeypatch.setattr("thinwire.papers.ef21.runs.run", interrupted)
    words = ["reproduce", "ef21", "--dataset", CANCER, "--figures", "tuned", "--rounds", "5", "--out", str(record)]
    assert main(words) == 130
    said = capsys.readouterr()
    assert "EF k=1" in said.out
    assert "--resume" in said.err
    assert len(EF21_EXPERIMENT.runs(record)) == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--dataset", "nothing"], "unknown data set 'nothing'"),
        (["--figures", "x"], "unknown figure 'x'"),
        (["--resume"], "give --out as well"),
    ],
)
def test_a_mistake_is_explained(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THINWIRE_DATA", raising=False)
    assert main(["reproduce", "ef21", *words]) == 2
    assert problem in capsys.readouterr().err.replace("\n", " ")


def test_a_record_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"kind": "run", "format": 1}\n')
    with pytest.raises(RecordError, match="line 1: a record of the experiment 'training', and not of 'ef21'"):
        EF21_EXPERIMENT.runs(tmp_path / "r.jsonl")


def test_the_benchmark_ends_where_numpy_ends(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "p.html"
    assert main(["bench", "simulate", "--rounds", "40", "--growth", "50,10000", "--page", str(page), "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["workers"] for row in rows] == [20, 50]
    assert rows[0]["apart"] < 40 * 30 * simulation.np.finfo(float).eps
    assert rows[1]["numpy_s"] is None
    assert "Time of a round" in page.read_text()
    assert main(["bench", "simulate", "--rounds", "20", "--growth", ""]) == 0
    assert "numpy / ours" in capsys.readouterr().out


def test_the_documented_runs_on_libsvm_data_are_those_of_their_record() -> None:
    """Each row of the table: rounds to the tolerances, and the paper's bits to the last one reached."""
    docs = Path(__file__).parents[2] / "docs"
    page, record = (docs / "reproduce.md").read_text(), docs / "records" / "ef21-libsvm.jsonl"
    outcomes = EF21_EXPERIMENT.runs(record)
    assert [one.setting for one in outcomes] == settings(["phishing", "a9a", "mushrooms", "w8a"], ["tuned"], 6000)
    for one in outcomes:
        bits = [each.paper_bits for each in one.reached if each.paper_bits is not None]
        rounds = ["–" if each.rounds is None else f"{each.rounds:,}" for each in one.reached]
        cells = [one.setting.label, *rounds, f"{bits[-1]:,} |" if bits else "|"]
        assert " | ".join(cells) in page


def test_the_documented_figures_of_a9a_are_those_of_their_record() -> None:
    """The rounds to the last tolerance that the page tells of, and where those ended that did not come to it."""
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "reproduce.md").read_text().partition("**a9a, other figures**")[2].partition("###")[0]
    outcomes = EF21_EXPERIMENT.runs(docs / "records" / "ef21-a9a.jsonl")
    assert [one.setting for one in outcomes] == settings(["a9a"], list(FIGURES), 6000)
    for one in outcomes:
        if one.status == "reached" and one.setting.figure not in ("tuned", "momentum"):
            assert f"{one.rounds:,}" in page, one.setting.title
        elif one.setting.figure in ("pl", "stochastic") and one.status == "stopped":
            assert f"{one.best:.1e}".replace("e-0", "e-") in page, one.setting.title


def test_the_documented_runs_under_ddp_are_those_of_their_records() -> None:
    """EF21-SGDM at 1 % density comes within half a point of dense training, over three seeds."""
    docs = Path(__file__).parents[2] / "docs"
    page = (docs / "reproduce.md").read_text()
    for task in ("digits", "text"):
        rows = summarise(read_records([docs / "records" / f"ef21-{task}.jsonl"]))
        accuracies = [row.accuracy or row.metric for row in rows]
        for row, accuracy in zip(rows, accuracies, strict=True):
            assert (row.config.engine, row.seeds, row.diverged) == ("ddp", [0, 1, 2], 0)
            cells = [f"`{row.label}`", f"{row.config.lr:g}", show_spread(accuracy, percent=True)]
            assert f"{' | '.join(cells)} | {show_ratio(row.ratio_message)} |" in page
        dense, momentum, _ = (accuracy.mean for accuracy in accuracies if accuracy)
        assert momentum > dense - 0.005
