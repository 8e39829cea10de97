"""Files that commands leave: checked before the work, never written over unasked, written whole or not at all."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

import pytest

from thinwire.cli.main import main
from thinwire.errors import ConfigError
from thinwire.report.destination import begun, check_destination, check_distinct, write_whole

QUICK = ["--engine", "sim", "--workers", "2", "--steps", "2", "--evaluations", "1"]
TRAIN = ["train", "logistic", "-m", "memsgd(topk(0.1))", *QUICK]


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def listing() -> set[str]:
    return {path.name for path in Path().iterdir()}


# ------------------------------------------------------------------------------------------------------------ the check


def test_a_path_that_is_taken_is_given_up_by_force_alone() -> None:
    path = Path("page.html")
    path.write_text("precious")
    with pytest.raises(ConfigError, match=r"the page page.html exists already: --force writes over it, or give --page"):
        check_destination(path, "page", "--page", force=False)
    check_destination(path, "page", "--page", force=True)
    assert path.read_text() == "precious"
    path.write_text("")
    check_destination(path, "page", "--page", force=False)


@pytest.mark.parametrize("exists", [True, False])
def test_a_link_is_told_with_its_target_whether_that_exists_or_not(exists: bool) -> None:
    if exists:
        Path("target").write_text("precious")
    Path("link").symlink_to("target")
    with pytest.raises(ConfigError, match="link is a symbolic link to target; --force puts a file in the link's place"):
        check_destination(Path("link"), "record", "--out", force=False)
    check_destination(Path("link"), "record", "--out", force=True)


@pytest.mark.parametrize("path", [".", "/dev/null"])
def test_what_is_no_plain_file_is_refused_even_by_force(path: str) -> None:
    with pytest.raises(ConfigError, match="cannot be written: it is no plain file; give --page another path"):
        check_destination(Path(path), "page", "--page", force=True)


@pytest.mark.parametrize(
    ("path", "problem"),
    [("file/page.html", "Not a directory"), ("/proc/no/page.html", "No such file"), ("x" * 300, "File name too long")],
)
def test_a_path_that_cannot_be_written_is_told(path: str, problem: str) -> None:
    Path("file").write_text("")
    with pytest.raises(ConfigError, match=f"the page .* cannot be written: {problem}.*; give --page another path"):
        check_destination(Path(path), "page", "--page", force=False)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_told() -> None:
    Path("folder").mkdir(mode=0o500)
    with pytest.raises(ConfigError, match="Permission denied"):
        check_destination(Path("folder/page.html"), "page", "--page", force=False)


def test_the_check_leaves_nothing_behind() -> None:
    check_destination(Path("a/b/page.html"), "page", "--page", force=False)
    assert listing() == set()


def test_two_names_of_one_file_are_told() -> None:
    with pytest.raises(ConfigError, match=r"--out and --page are the same file, a\.html"):
        check_distinct(Path("a.html"), Path("./x/../a.html"), "--out and --page")


# ---------------------------------------------------------------------------------------------------------- the writing


def test_a_page_is_written_whole_into_new_folders_with_the_usual_permissions() -> None:
    before = os.umask(0o027)
    try:
        write_whole("größer", Path("a/b/page.html"), "page", "--page")
    finally:
        os.umask(before)
    assert Path("a/b/page.html").read_text(encoding="utf-8") == "größer"
    assert stat.S_IMODE(Path("a/b/page.html").stat().st_mode) == 0o640
    assert {path.name for path in Path("a/b").iterdir()} == {"page.html"}


def test_a_full_disk_leaves_the_old_page_and_no_other_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    Path("page.html").write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(ConfigError, match=r"the page page.html cannot be written: No space left on device"):
        write_whole("new", Path("page.html"), "page", "--page")
    assert listing() == {"page.html"}
    assert Path("page.html").read_text() == "old"


def test_a_link_is_replaced_and_its_target_left_alone() -> None:
    Path("target").write_text("precious")
    Path("link").symlink_to("target")
    write_whole("new", Path("link"), "page", "--page")
    assert (Path("link").read_text(), Path("link").is_symlink()) == ("new", False)
    assert Path("target").read_text() == "precious"


def test_a_record_that_is_begun_anew_comes_back_when_nothing_is_written() -> None:
    record = Path("r.jsonl")
    record.write_text("old")
    with suppress(RuntimeError), begun(record, resume=False):
        assert record.read_text() == ""
        raise RuntimeError
    assert record.read_text() == "old"
    with suppress(RuntimeError), begun(record, resume=False):
        record.write_text("new")
        raise RuntimeError
    assert record.read_text() == "new"
    with begun(record, resume=True):
        assert record.read_text() == "new"
    assert listing() == {"r.jsonl"}


def test_a_record_that_never_began_leaves_no_file() -> None:
    with begun(Path("r.jsonl"), resume=False):
        pass
    assert listing() == set()


# --------------------------------------------------------------------------------------------------------- the commands

EVERY = {
    "train": TRAIN,
    "compare": ["compare", "logistic", "dense", *QUICK],
    "demo": ["demo", "--engine", "sim", "--workers", "2", "--steps", "1", "--seeds", "0"],
    "vgc": ["reproduce", "vgc", "--small", "--epochs", "1"],
    "ef21": ["reproduce", "ef21", "--quick"],
    "memsgd": ["reproduce", "memsgd", "--quick"],
    "simulate": ["bench", "simulate", "--rounds", "20"],
    "report": ["report", "record.jsonl"],
}


@pytest.mark.parametrize("option", ["--out", "--page"])
@pytest.mark.parametrize("command", EVERY)
def test_no_command_writes_over_a_file_unasked(command: str, option: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor does it work first: the record of `report` is not even looked for."""
    if option == {"simulate": "--out", "report": "--page"}.get(command):
        pytest.skip("the command has no such option")
    Path("mine").write_text("precious")
    assert main([*EVERY[command], option, "mine"]) == 2
    err = capsys.readouterr().err
    assert "mine exists already: --" in err
    assert "--force" in err
    Path("mine").unlink()
    Path("mine").symlink_to("elsewhere")
    assert main([*EVERY[command], option, "mine"]) == 2
    assert "symbolic link to elsewhere" in capsys.readouterr().err
    assert listing() == {"mine"}


def test_force_writes_over_both_and_again(capsys: pytest.CaptureFixture[str]) -> None:
    words = [*TRAIN, "--out", "r.jsonl", "--page", "p.html"]
    assert main(words) == 0
    page = Path("p.html").read_text()
    assert main(words) == 2
    assert Path("p.html").read_text() == page
    assert main([*words, "--force"]) == 0
    assert Path("r.jsonl").read_text().count('"kind": "run"') == 1
    assert main(["report", "r.jsonl", "--out", "p.html"]) == 2
    assert main(["report", "r.jsonl", "--out", "p.html", "--force"]) == 0
    assert listing() == {"r.jsonl", "p.html"}


def test_a_command_without_out_can_be_run_again_and_again() -> None:
    """By default a record, and the demo's page beside it, carry the time, and a number where that is taken."""
    for _ in range(2):
        assert main(TRAIN) == 0
    assert [path.suffix for path in Path("runs").iterdir()] == [".jsonl", ".jsonl"]


def test_a_page_never_takes_the_place_of_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, "--out", "same", "--page", "same"]) == 2
    assert "--out and --page are the same file" in capsys.readouterr().err
    assert main([*TRAIN, "--out", "r.jsonl"]) == 0
    record = Path("r.jsonl").read_text()
    assert main(["report", "r.jsonl", "--out", "r.jsonl", "--force"]) == 2
    assert "a record and --out are the same file" in capsys.readouterr().err
    assert Path("r.jsonl").read_text() == record


@pytest.mark.parametrize("option", ["--out", "--page"])
def test_a_path_that_cannot_be_written_is_told_before_the_work(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRAIN, option, "/proc/no/file"]) == 2
    said = capsys.readouterr()
    assert "/proc/no/file cannot be written" in said.err
    assert said.out == ""
    assert listing() == set()


def test_resume_goes_on_with_the_record_and_force_is_for_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["reproduce", "ef21", "--dataset", "breast_cancer", "--figures", "tuned", "--rounds", "2"]
    words += ["--out", "r.jsonl", "--page", "p.html"]
    assert main(words) == 0
    record = Path("r.jsonl").read_text()
    assert main([*words, "--resume"]) == 2
    assert "p.html exists already" in capsys.readouterr().err
    assert main([*words, "--resume", "--force"]) == 0
    assert Path("r.jsonl").read_text() == record
    assert main([*words, "--force"]) == 0
    assert len(Path("r.jsonl").read_text().splitlines()) == len(record.splitlines())
