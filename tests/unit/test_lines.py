"""Records on a disk that fills up, or of a process that was killed: whole up to the last line, and readable."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from thinwire.cli.main import main
from thinwire.errors import RecordError, RecordWarning
from thinwire.papers.ef21.sections import EF21_EXPERIMENT
from thinwire.report.record_file import LineWriter, cut_torn_line_
from thinwire.training import RunRecord, read_records, train
from thinwire.training.config import comparison
from thinwire.training.formatting import show_metric
from thinwire.training.records import finished_runs
from thinwire.training.sections import verdict
from thinwire.training.summary import summarise

SETTINGS: dict[str, Any] = {"engine": "sim", "workers": 2, "steps": 12, "evaluations": 3}
EF21 = ["reproduce", "ef21", "--dataset", "breast_cancer", "--figures", "tuned", "--rounds", "2"]


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("record") / "r.jsonl"
    train(comparison("logistic", ["dense", "memsgd(topk(0.1))"], [0, 1], **SETTINGS), path)
    return path


@contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process can grow beyond `size` bytes: to a writer, a disk that is full there."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# ------------------------------------------------------------------------------------------------------------ full disk


def test_a_line_that_does_not_fit_is_taken_back_and_the_error_names_the_file(tmp_path: Path) -> None:
    writer = LineWriter(tmp_path / "r.jsonl")
    with files_up_to(100):
        writer.write("x" * 70)
        with pytest.raises(RecordError, match=r"r.jsonl cannot be written any further: File too large; .* Make room"):
            writer.write("y" * 70)
    writer.close()
    assert (tmp_path / "r.jsonl").read_text() == "x" * 70 + "\n"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_device_without_room_is_told_as_such() -> None:
    writer = LineWriter(Path("/dev/full"))
    with pytest.raises(RecordError, match="record /dev/full cannot be written any further: No space left on device"):
        writer.write("{}")
    writer.close()


def test_training_on_a_full_disk_leaves_a_record_that_is_drawn_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk is full in the middle of the third run."""
    monkeypatch.chdir(tmp_path)
    words = ["compare", "logistic", "dense", "memsgd(topk(0.1))", "--seeds", "0,1", "--engine", "sim", "--workers", "2"]
    words += ["--steps", "12", "--evaluations", "3", "--out"]
    assert main([*words, "w.jsonl"]) == 0
    lines = Path("w.jsonl").read_bytes().splitlines(keepends=True)
    ends = [place for place, line in enumerate(lines) if b'"end"' in line]
    with files_up_to(len(b"".join(lines[: (ends[1] + ends[2]) // 2]))):
        assert main([*words, "r.jsonl"]) == 2
    said = capsys.readouterr().err
    assert "error: record r.jsonl cannot be written any further: File too large" in said
    assert "Traceback" not in said
    assert Path("r.jsonl").read_bytes().endswith(b"\n")
    assert main(["report", "r.jsonl", "--out", "p.html"]) == 0
    said = capsys.readouterr()
    assert "note: record r.jsonl, line" in said.err
    assert "memsgd(topk(0.1)) with seed 0, has no end line: it was cut off at step" in said.err
    assert "(3 runs)" in said.out
    assert "memsgd(topk(0.1)) · cut off" in Path("p.html").read_text()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_disk_that_is_full_indeed(tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(RecordError, match=r"disk/r.jsonl cannot be written any further: No space left on device"):
            train(comparison("logistic", ["dense", "fp16"], [0, 1, 2], **SETTINGS), disk / "r.jsonl")
        with pytest.warns(RecordWarning, match="cut off"):
            assert read_records([disk / "r.jsonl"])[-1].cut_off
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_an_experiments_record_on_a_full_disk_is_gone_on_with(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*EF21, "--out", "whole.jsonl"]) == 0
    lines = Path("whole.jsonl").read_bytes().splitlines(keepends=True)
    with files_up_to(len(b"".join(lines[:3])) + 50):
        assert main([*EF21, "--out", "r.jsonl"]) == 2
    assert "record r.jsonl cannot be written any further" in capsys.readouterr().err
    assert len(Path("r.jsonl").read_bytes().splitlines()) == 3
    assert main([*EF21, "--out", "r.jsonl", "--resume"]) == 0
    assert len(EF21_EXPERIMENT.runs(Path("r.jsonl"))) == len(lines) - 1


# ----------------------------------------------------------------------------------------------------------- torn lines


def read_cut(path: Path, content: bytes) -> list[RunRecord]:
    path.write_bytes(content)
    with pytest.warns(RecordWarning, match=r"cut\.jsonl, line \d+: .*cut off"):
        return read_records([path])


@pytest.mark.parametrize("torn", [0, 1, 20, -2])
def test_a_record_is_read_up_to_its_last_whole_line(record: Path, tmp_path: Path, torn: int) -> None:
    """Cut off behind the fifth line of the second run, or within the sixth."""
    lines = record.read_bytes().splitlines(keepends=True)
    begin = 1 + next(place for place, line in enumerate(lines) if b'"end"' in line)
    runs = read_cut(tmp_path / "cut.jsonl", b"".join(lines[: begin + 5]) + lines[begin + 5][:torn])
    whole = read_records([record])
    assert runs[0] == whole[0]
    assert (runs[1].config, runs[1].cut_off, runs[1].metric) == (whole[1].config, True, None)
    assert runs[1].losses == whole[1].losses[: len(runs[1].losses)]
    assert runs[1].end["steps"] == runs[1].losses[-1].step == 4


def test_a_run_that_another_follows_without_an_end_is_cut_off_too(record: Path, tmp_path: Path) -> None:
    lines = record.read_bytes().splitlines(keepends=True)
    end = next(place for place, line in enumerate(lines) if b'"end"' in line)
    runs = read_cut(tmp_path / "cut.jsonl", b"".join(lines[:end] + lines[end + 1 :]))
    assert [run.cut_off for run in runs] == [True, False, False, False]
    (alone,) = read_cut(tmp_path / "cut.jsonl", lines[0] + lines[1])  # the head, and the first line of a run
    assert (alone.losses, alone.end["steps"]) == ((), 0)
    assert show_metric(summarise([alone])[0]) == "at step 0 of 12"


def test_a_torn_line_in_the_middle_or_alone_is_still_refused(record: Path, tmp_path: Path) -> None:
    path = tmp_path / "broken.jsonl"
    lines = record.read_bytes().splitlines(keepends=True)
    for content, number in ((lines[0][:30], 1), (lines[0] + lines[1][:30] + b"\n" + lines[2], 2)):
        path.write_bytes(content)
        with pytest.raises(RecordError, match=rf"line {number}: malformed: not a JSON object"):
            read_records([path])


def test_runs_that_were_cut_off_have_rows_of_their_own_and_no_verdict(record: Path, tmp_path: Path) -> None:
    """A row's means are over runs of one length: the other seed's are as they were."""
    lines = record.read_bytes().splitlines(keepends=True)
    runs = read_cut(tmp_path / "cut.jsonl", b"".join(lines[:-3]))
    rows = summarise(runs)
    assert [(row.label, row.seeds) for row in rows] == [
        ("dense", [0, 1]),
        ("memsgd(topk(0.1))", [0]),
        ("memsgd(topk(0.1)) · cut off", [1]),
    ]
    assert rows[1] == summarise(read_records([record])[:3])[1]
    assert [row.diverged for row in rows] == [0, 0, 0]
    assert verdict(rows) == verdict(rows[:2])


@pytest.mark.parametrize("torn", [b'{"ki', b'{"kind": "run", "for'])
def test_resuming_cuts_a_torn_line_off_however_short(record: Path, tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(record.read_bytes() + torn)
    assert len(finished_runs(path)) == 4
    assert path.read_bytes() == record.read_bytes()
    path.write_bytes(record.read_bytes() + b"my notes")
    with pytest.raises(RecordError, match=r"no line of a record.*my notes"):
        finished_runs(path)
    assert path.read_bytes() == record.read_bytes() + b"my notes"


def test_resuming_keeps_the_head_and_cuts_off_one_that_is_torn(record: Path, tmp_path: Path) -> None:
    """Ended within the head nothing is left; within the first run the head; a head of another kind is not touched."""
    path, content = tmp_path / "r.jsonl", record.read_bytes()
    head = content.index(b"\n") + 1
    for end, kept in ((5, 0), (40, 0), (head, head), (head + 30, head), (content.index(b'"eval"'), head)):
        path.write_bytes(content[:end])
        assert finished_runs(path) == []
        assert path.stat().st_size == kept
    path.write_bytes(b'{"kind":"ef21","for')
    with pytest.raises(RecordError, match="no line of a record"):
        finished_runs(path)
    assert path.stat().st_size == 19


def test_a_torn_line_of_an_experiment_is_left_out_with_a_note_and_cut_off(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*EF21, "--out", "r.jsonl"]) == 0
    whole = Path("r.jsonl").read_bytes()
    Path("r.jsonl").write_bytes(whole[:-100])
    with pytest.warns(RecordWarning, match="was cut off while it was written and is left out"):
        assert len(EF21_EXPERIMENT.runs(Path("r.jsonl"))) == len(whole.splitlines()) - 2
    capsys.readouterr()
    assert main([*EF21, "--out", "r.jsonl", "--resume"]) == 0
    assert capsys.readouterr().err.count("note: record r.jsonl, line") == 1
    assert len(EF21_EXPERIMENT.runs(Path("r.jsonl"))) == len(whole.splitlines()) - 1


def test_a_missing_line_break_is_added_and_nothing_foreign_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    for before, after in ((b'{"kind":1}', b'{"kind":1}\n'), (b"a\nnotes", b"a\nnotes\n"), (b'a\n{"kind":"r', b"a\n")):
        path.write_bytes(before)
        cut_torn_line_(path)
        assert path.read_bytes() == after


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_real_workers_on_a_full_disk_tell_it_with_the_path(tmp_path: Path) -> None:
    """The limit holds for all that the processes write: output, jobs and failures are small enough for it."""
    program = [sys.executable, "-m", "thinwire.cli.main", "train", "digits", "-m", "dense", "--workers", "1"]
    result = subprocess.run(
        [*program, "--steps", "60", "--evaluations", "60", "--out", "r.jsonl"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (6000, 6000)),
    )
    assert result.returncode == 2, result.stderr
    assert "r.jsonl cannot be written any further: File too large" in result.stderr
    assert "Traceback" not in result.stderr
    assert json.loads((tmp_path / "r.jsonl").read_text().splitlines()[-1])["kind"] in ("step", "eval")
