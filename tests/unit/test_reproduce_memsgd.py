"""The Mem-SGD experiments on small data: settings, runs, bits, tables, records, the command and its page."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from thinwire import parse
from thinwire.cli.main import main
from thinwire.errors import ConfigError, RecordError
from thinwire.papers.memsgd.claims import DEFECTS, EPSILON, RCV1, best, claims, share, speedups, threshold
from thinwire.papers.memsgd.runs import LOOKS, LossPoint, MemSGDRun, honest_bits, paper_bits, run, wire_bits
from thinwire.papers.memsgd.sections import MEMSGD_EXPERIMENT, TITLES, note_of, title
from thinwire.papers.memsgd.settings import FIGURES, SGD, MemSGDSetting, Scale, rand, settings, top
from thinwire.papers.memsgd.unit_rows import FIRST_SHARE, generated, problem_of, unit_rows

CANCER = "breast_cancer"
EPS = float(np.finfo(np.float32).eps)
DENSE = Scale("epsilon", 400_000, 2_000, sparse=False, most=None)
SPARSE = Scale("RCV1", 677_399, 47_236, sparse=True, most=None)


def outcome(setting: MemSGDSetting, *points: LossPoint) -> MemSGDRun:
    return MemSGDRun(setting, 100, 30, 30.0, False, 1.0, "done", 384.0, points)


def table(runs: list[MemSGDRun]) -> Sequence[Sequence[str]]:
    (section,) = MEMSGD_EXPERIMENT.sections(runs)
    return section.table


# ----------------------------------------------------------------------------------------------------------------- data


def test_generated_rows_are_shaped_as_epsilon_is() -> None:
    """Norm one, 38 % of the square along one direction, columns of about the same variance; both labels."""
    rows, labels = generated(400)
    assert rows.shape == (400, 2000)
    assert np.linalg.norm(rows, axis=1) == pytest.approx(np.ones(400), rel=4 * math.sqrt(2000) * EPS)
    spectrum = np.linalg.eigvalsh(rows @ rows.T / 400)
    assert spectrum[-1] == pytest.approx(FIRST_SHARE, rel=3 / math.sqrt(400))
    assert spectrum[-2] < FIRST_SHARE / 20
    assert set(labels) == {-1.0, 1.0}
    assert generated(400)[0].tolist() == rows.tolist()


def test_rows_are_scaled_to_norm_one_and_dense_ones_stored_so() -> None:
    thin = csr_matrix(([3.0, 4.0], ([0, 0], [1, 5])), shape=(2, 9))
    scaled = unit_rows(thin)
    assert scaled.toarray()[0, [1, 5]] == pytest.approx([0.6, 0.8])
    assert not scaled.toarray()[1].any()  # an empty row stays empty
    assert isinstance(unit_rows(csr_matrix(np.ones((2, 3)))), np.ndarray)


def test_the_least_loss_is_a_minimum() -> None:
    problem = problem_of(CANCER, None)
    samples, strength = problem.samples, 1 / len(problem.samples)
    x = np.zeros(samples.d)
    assert problem.least < samples.objective(x, strength)
    descent = run(MemSGDSetting("cores", CANCER, "SGD", SGD, 1.0, 40))
    assert 0 <= descent.end < 1e-2


def test_data_that_could_be_taken_for_the_papers_is_named() -> None:
    assert "not RCV1" in note_of("reuters21578_tfidf")
    assert "not RCV1" in title("bits", "reuters21578_tfidf")
    assert "not epsilon" in note_of("generated-4000")
    assert "scale" in note_of("rcv1_vw_train1000")
    assert note_of("a9a") == ""


# ------------------------------------------------------------------------------------------------------------- settings


def test_settings_are_the_papers() -> None:
    shifts = {one.label: one.size for one in settings([DENSE], ["theory"], [1], 1)}
    assert (shifts["top-1"], shifts["rand-2"], shifts["rand-3, no delay"]) == (2000, 1000, 1)
    shifts = {one.label: one.size for one in settings([SPARSE], ["theory"], [1], 1)}
    assert (shifts["top-10"], shifts["rand-20"], shifts["rand-30, no delay"]) == (47236, 23618, 10)
    epochs = {(one.figure, one.dataset): one.epochs for one in settings([DENSE, SPARSE], FIGURES, [1], 1)}
    assert [epochs["theory", name] for name in ("epsilon", "RCV1")] == [EPSILON.epochs, RCV1.epochs]
    assert [epochs["bits", name] for name in ("epsilon", "RCV1")] == [10, 10]
    assert [epochs["cores", name] for name in ("epsilon", "RCV1")] == [10, 5]
    threads = settings([SPARSE], ["cores"], [1, 2], 3)
    assert len(threads) == 3 * 3 * 2
    assert {one.rule for one in threads} == {SGD, "memsgd(randk(count=50))", "memsgd(topk(count=50))"}


def test_every_setting_is_a_rule_and_published_labels_are_ours() -> None:
    wanted = settings([DENSE, SPARSE], FIGURES, [1, 2], 1)
    for one in wanted:
        parse(one.rule)
    for paper, name in ((EPSILON, "epsilon"), (RCV1, "RCV1")):
        labels = {
            figure: {one.label for one in wanted if (one.figure, one.dataset) == (figure, name)} for figure in FIGURES
        }
        assert set(paper.theory) <= labels["theory"]
        assert set(paper.bits) <= labels["bits"]
        assert {label.partition("-")[0] for label in labels["cores"]} == set(paper.speedups)
    assert set(DEFECTS) == set(FIGURES)


def test_small_data_takes_more_epochs_and_quick_runs_fewer() -> None:
    small = Scale("x", 1_000, 2_000, sparse=False, most=None)
    assert small.epochs(3, 1) == math.ceil(2_000 * math.sqrt(250) / 1_000) == 32
    assert replace(small, most=10_000).epochs(3, 1) == 10
    assert replace(small, d=4).k(10) == 4


@pytest.mark.parametrize(
    ("figures_", "threads", "epochs", "problem"),
    [
        (["nine"], [1], None, "unknown figure 'nine'; the figures are theory, bits"),
        (["cores"], [0], None, "threads must be at least 1, got 0"),
        (["bits"], [1], 0, "epochs must be at least 1, got 0"),
    ],
)
def test_settings_refuse(figures_: list[str], threads: list[int], epochs: int | None, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        settings([DENSE], figures_, threads, 1, epochs)


# ----------------------------------------------------------------------------------------------------------------- bits


def test_bits_by_the_papers_count_and_honestly() -> None:
    """d = 2,000: positions take 11 bits, x₀ 64,000."""
    assert paper_bits("memsgd(topk(count=10))", 2000, None) == 640
    assert paper_bits(SGD, 2000, None) == 128_000
    assert paper_bits(SGD, 47_236, 70) == 4_480
    start = 64_000
    assert honest_bits("memsgd(randk(count=1))", 2000, False, 10, 7) == start + 7 * 43
    assert honest_bits(SGD, 2000, False, 10, 20_000) == start + 10 * 64_000
    assert honest_bits(SGD, 2000, True, 10, 500) == start + 500 * 43
    assert honest_bits("plain(qsgd(4, 2000))", 2000, False, 10, 20_000) == start + 10 * (32 + 4 * 2000)
    assert honest_bits("plain(qsgd(4, 2000))", 2000, False, 10, 50) == start + 10 * 32 + 50 * (1 + 2 + 11)


def test_bits_of_our_own_messages() -> None:
    samples = problem_of(CANCER, None).samples
    one, all_ = wire_bits("memsgd(topk(count=1))", samples), wire_bits(SGD, samples)
    assert one % 8 == 0
    assert one < 32 * samples.d < all_


# ----------------------------------------------------------------------------------------------------------------- runs


def test_memory_and_delay_as_the_paper_claims() -> None:
    wanted = {one.label: one for one in settings([Scale.of(problem_of(CANCER, None))], ["theory"], [1], 1)}
    names = ("SGD", "top-1", "top-1, no memory", "rand-1", "rand-1, no delay")
    found = {name: run(wanted[name]) for name in names}
    assert found["top-1, no memory"].end > 20 * found["top-1"].end
    assert found["top-1"].end < 2 * found["SGD"].end
    early = {name: one.at_epoch(1).loss for name, one in found.items()}
    assert early["rand-1, no delay"] > 10 * early["rand-1"]
    assert 0 <= found["SGD"].at_epoch(1).step - found["SGD"].samples < LOOKS  # a look at each tenth, rounded up
    assert found["SGD"].last.written == found["SGD"].last.step * 30


def test_a_run_that_diverges_says_so() -> None:
    """a ≈ 0 makes the first step so long that all that follow cannot mend it."""
    gone = run(MemSGDSetting("theory", CANCER, "SGD", SGD, 1e-15, 1))
    assert gone.status == "diverged"
    assert gone.end == math.inf
    assert share(gone.end) == "diverged"


@pytest.mark.parametrize("figure", FIGURES)
def test_every_figure_has_a_table_and_sentences(figure: str) -> None:
    runs = [run(one) for one in settings([Scale.of(problem_of(CANCER, None))], [figure], [1], 1, epochs=1)]
    head, *rows = table(runs)
    assert rows
    assert all(len(row) == len(head) for row in rows)
    assert claims(runs)


def test_speed_up_is_over_the_fastest_single_thread() -> None:
    """The threshold is the largest of the runs' least losses: 1.2 here, first met after 4, 3, 2 and 1 seconds."""
    base = MemSGDSetting("cores", CANCER, "SGD", SGD, 1.0, 1)
    rows = [(1, 0, 4.0, 1.1), (1, 1, 3.0, 1.2), (2, 0, 2.0, 1.2), (2, 1, 1.0, 1.0)]
    runs = [
        outcome(
            replace(base, threads=threads, seed=seed), LossPoint(0, 0.0, 0, 9.0), LossPoint(100, seconds, 3000, loss)
        )
        for threads, seed, seconds, loss in rows
    ]
    assert threshold(runs) == 1.2
    assert speedups(runs) == {("SGD", 1): [0.75, 1.0], ("SGD", 2): [1.5, 3.0]}


def test_a_figure_that_broke_off_still_has_a_table_and_sentences() -> None:
    """SGD on one thread and two, rand-10 on one, top-10 only on two."""
    base = MemSGDSetting("cores", CANCER, "SGD", SGD, 1.0, 1)
    settings_ = [
        base,
        replace(base, threads=2),
        replace(base, label="rand-10", rule=rand(10)),
        replace(base, label="top-10", rule=top(10), threads=2),
    ]
    runs = [outcome(one, LossPoint(0, 0.0, 0, 9.0), LossPoint(100, 1.0, 3000, 1.2)) for one in settings_]
    assert [row[:2] for row in table(runs)[1:]] == [["SGD", "1"], ["SGD", "2"], ["rand-10", "1"]]
    assert claims(runs)[-1] == "On 2 threads lock-free SGD takes 1.000 s to the loss, top-10 1.00 times that."
    assert len(claims(runs[1:2])) == 1


def test_each_method_is_shown_at_its_best_step() -> None:
    base = MemSGDSetting("bits", CANCER, "top-1", "memsgd(topk(count=1))", 1.0, 1)
    good = outcome(base, LossPoint(0, 0.0, 0, 2.0), LossPoint(50, 0.1, 50, 1.005))
    bad = outcome(replace(base, size=10.0), LossPoint(50, 0.1, 50, 1.5))
    assert best([bad, good]) == [good]
    row = table([bad, good])[1]
    assert row[:4] == ["top-1", "1", "0.50 %", "0.5"]
    assert row[4:7] == ["400 B", f"{(32 * 30 + 50 * 37) / 8:.0f} B", "2.40 kB"]


# -------------------------------------------------------------------------------------------------------------- command


def test_the_command_writes_a_record_a_table_and_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, page = tmp_path / "r.jsonl", tmp_path / "p.html"
    words = ["reproduce", "memsgd", "--dataset", CANCER, "--epochs", "1", "--threads", "1", "--repeats", "1"]
    words += ["--out", str(record)]
    assert main([*words, "--page", str(page)]) == 0
    shown = capsys.readouterr().out
    for heading in TITLES.values():
        assert f"{heading} · {CANCER}" in shown
    assert "in truth rand-k" in shown
    outcomes = MEMSGD_EXPERIMENT.runs(record)
    assert {one.setting.figure for one in outcomes} == set(FIGURES)
    html = page.read_text()
    assert "Defect of the published figure" in html
    assert "SGD, epsilon" in html  # the paper's speed-ups are drawn beside ours
    before = record.read_text()
    assert main([*words, "--resume", "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["setting"]["label"] for line in lines] == [one.setting.label for one in outcomes]
    assert record.read_text() == before


def test_a_record_that_exists_is_gone_on_with_or_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = tmp_path / "r.jsonl"
    words = ["reproduce", "memsgd", "--dataset", CANCER, "--figures", "theory", "--epochs", "1", "--out", str(record)]
    foreign = {
        '{"kind":"ef21","format":1,"provenance":{}}\n': "a record of the experiment 'ef21', and not of 'memsgd'",
        "a diary\n": "malformed: not a JSON object",
    }
    for content, problem in foreign.items():
        record.write_text(content)
        assert main(words) == 2
        assert "exists already: --resume goes on with it" in " ".join(capsys.readouterr().err.split())
        assert main([*words, "--resume"]) == 2
        assert f"line 1: {problem}" in " ".join(capsys.readouterr().err.split())
        assert record.read_text() == content


def test_a_path_of_a_data_set_is_not_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("".join(f"{i % 2} 1:{i} {2 + i % 3}:1\n" for i in range(40)))
    words = ["--dataset", str(tmp_path / "mine.txt"), "--figures", "theory", "--epochs", "1", "--json"]
    assert main(["reproduce", "memsgd", *words, "--out", str(tmp_path / "r.jsonl")]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed.splitlines()[0])["setting"]["dataset"] == "mine"
    assert str(tmp_path) not in printed


def test_a_file_is_data_and_its_folder_stays_unsaid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rng, lines = np.random.default_rng(0), []
    for row in rng.standard_normal((40, 5)):
        values = " ".join(f"{j + 1}:{value:.4f}" for j, value in enumerate(row))
        lines.append(f"{1 if row[0] > 0 else 2} {values}")
    (tmp_path / "mine.txt").write_text("\n".join(lines))
    words = [
        "--figures",
        "cores",
        "--epochs",
        "1",
        "--threads",
        "1",
        "--repeats",
        "1",
        "--out",
        str(tmp_path / "r.jsonl"),
    ]
    assert main(["reproduce", "memsgd", "--data", str(tmp_path / "mine.txt"), *words, "--json"]) == 0
    printed = capsys.readouterr().out
    assert json.loads(printed.splitlines()[0])["setting"]["dataset"] == "mine"
    assert str(tmp_path) not in printed
    assert (
        main(["reproduce", "memsgd", "--data", str(tmp_path / "mine.txt"), "--dataset", CANCER, *words, "--force"]) == 2
    )
    assert "one file, mine; it does not hold breast_cancer" in " ".join(capsys.readouterr().err.split())


def test_ctrl_c_keeps_what_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record, calls = tmp_path / "r.jsonl", []

    def interrupted(one: MemSGDSetting, *more: object) -> MemSGDRun:
        calls.append(one)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return run(one)

    monkeypatch.setattr("thinwire.papers.memsgd.runs.run", interrupted)
    words = ["--dataset", CANCER, "--figures", "theory", "--epochs", "1", "--out", str(record)]
    assert main(["reproduce", "memsgd", *words]) == 130
    assert "--resume" in capsys.readouterr().err
    assert len(MEMSGD_EXPERIMENT.runs(record)) == 2


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--dataset", "nothing"], "unknown data set 'nothing'"),
        (["--dataset", "generated-x"], "'generated-x' names no size"),
        (["--samples", "1"], "at least 2"),
        (["--dataset", CANCER, "--figure", "x"], "unknown figure 'x'"),
        (["--dataset", CANCER, "--threads", "1,a"], "--threads takes numbers"),
        (["--dataset", CANCER, "--repeats", "0"], "repeats must be at least 1, got 0"),
        (["--resume"], "give --out as well"),
    ],
)
def test_a_mistake_is_explained(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("THINWIRE_DATA", raising=False)
    assert main(["reproduce", "memsgd", *words]) == 2
    assert problem in capsys.readouterr().err.replace("\n", " ")


def test_a_record_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text('{"kind": "ef21", "format": 1}\n')
    with pytest.raises(RecordError, match="line 1: a record of the experiment 'ef21', and not of 'memsgd'"):
        MEMSGD_EXPERIMENT.runs(tmp_path / "r.jsonl")


def test_where_the_start_is_near_enough_there_is_nothing_to_compare() -> None:
    """Nothing was sent, and no time went by: no ratios of zeros."""
    start = LossPoint(0, 0.0, 0, 1.0), LossPoint(100, 0.5, 300, 1.0)
    rules = {"SGD": SGD, "top-1": "memsgd(topk(count=1))", "QSGD 4 bit": "plain(qsgd(16, 30))"}
    bits = [outcome(MemSGDSetting("bits", CANCER, label, rule, 1.0, 10), *start) for label, rule in rules.items()]
    assert len(claims(bits)) == 1  # how bits are counted
    assert table(bits)[2][3] == "0.0"
    cores = [outcome(MemSGDSetting("cores", CANCER, label, rule, 1.0, 10, threads=count), *start)
             for label, rule in rules.items() for count in (1, 2)]  # fmt: skip
    assert speedups(cores)["top-1", 2] == [1.0]
    assert len(claims(cores)) == 1
