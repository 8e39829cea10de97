"""The command line: what it accepts, what it prints, and how it refuses."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
from rich.console import Console

import thinwire
from thinwire import parse
from thinwire.cli.main import app, main
from thinwire.cli.progress import progress
from thinwire.errors import SpecError
from thinwire.training import read_records
from thinwire.training.config import OPTIMIZERS, SCHEDULES, TORCH_METHODS
from thinwire.training.tasks import TASKS

QUICK = ["--engine", "sim", "--workers", "2", "--steps", "4", "--evaluations", "2"]
TRAINING = {"--workers", "--engine", "--steps", "--out", "--page", "--force", "--debug"}
SETTINGS = {"--batch", "--lr", "--optimizer", "--schedule", "--data", "--evaluations"}

# Changing what stands here changes what people type: say so in the changelog.
BENCH = {"--numel", "--densities", "--repeats", "--threads", "--json"}
COMMANDS = {
    "bench": set(),
    "bench bytes": {"--workers", "--json"},
    "bench crowd": {"--dataset", "--data", "--workers", "--methods", "--rounds", "--json", "--plugin"},
    "bench kernels": BENCH | {"--op", "--device"},
    "bench lockfree": {
        "--dataset",
        "--method",
        "--initial",
        "--samples",
        "--shapes",
        "--threads",
        "--units",
        "--repeats",
        "--data",
        "--json",
    },
    "bench memory": {"--parameters", "--rules", "--json"},
    "bench moments": {"--small", "--only", "--device", "--repeats", "--json"},
    "bench ops": {"--numel", "--op", "--repeats", "--threads", "--json"},
    "bench simulate": {
        "--dataset",
        "--data",
        "--workers",
        "--rounds",
        "--growth",
        "--threads",
        "--json",
        "--page",
        "--force",
    },
    "bench step": {"--device", "--model", "--batch", "--methods", "--profile", "--rounds", "--json"}
    | {"--nonfinite", "--bucket-cap-mb"},
    "bench wire": BENCH,
    "demo": TRAINING | {"--seeds", "--rate"},
    "train": TRAINING | SETTINGS | {"--method", "--seed", "--every", "--rate", "--plugin"},
    "compare": TRAINING | SETTINGS | {"--seeds", "--rate", "--plugin"},
    "report": {"--out", "--force", "--debug", "--plugin"},
    "reproduce": set(),
    "reproduce vgc": {
        *("--optimizer", "--methods", "--epochs", "--seeds", "--data", "--device", "--small"),
        *("--json", "--resume", "--out", "--page", "--force", "--debug", "--plugin"),
    },
    "reproduce ef21": {
        *("--dataset", "--figures", "--rounds", "--quick", "--data", "--json", "--resume", "--out", "--page"),
        *("--force", "--debug"),
    },
    "reproduce memsgd": {
        *("--figures", "--figure", "--dataset", "--data", "--samples", "--epochs", "--threads", "--repeats", "--quick"),
        *("--json", "--resume", "--out", "--page", "--force", "--debug"),
    },
    "reproduce adaptive": {
        *("--methods", "--scale", "--text", "--steps", "--seeds", "--ingredients", "--every", "--rate", "--plugin"),
        *("--json", "--resume", "--out", "--page", "--force", "--debug"),
    },
    "theory": {
        *("--problem", "--dataset", "--workers", "--split", "--concentration", "--seed", "--strength", "--data"),
        *("--step", "--json", "--debug", "--plugin"),
    },
    "lab": {
        *("--hosts", "--rate", "--up", "--down", "--task", "--methods", "--batch", "--data", "--steps", "--rounds"),
        *(
            "--replay",
            "--codec",
            "--every",
            "--settle",
            "--train",
            "--timeout",
            "--emulated",
            "--out",
            "--page",
            "--force",
            "--plugin",
            "--debug",
        ),
    },
    "scale": {
        *(
            "--workers",
            "--rate",
            "--latency",
            "--message",
            "--parameters",
            "--compute",
            "--least",
            "--convex",
            "--steps",
        ),
        *("--step-size", "--out", "--page", "--force", "--plugin", "--debug"),
    },
    "advise": {
        *("--model", "--workers", "--rate", "--methods", "--optimizer", "--batch", "--data", "--compute", "--every"),
        *("--here", "--measure", "--lab", "--check", "--rounds", "--steps", "--json", "--out", "--force", "--plugin"),
        "--debug",
    },
    "info": {"--plugin"},
}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command runs in a folder of its own, and wide enough that help is not wrapped inside a word."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "160")


def test_the_commands_and_their_options_are_these() -> None:
    assert dict(commands_of(typer.main.get_command(app))) == COMMANDS


def commands_of(group: Any, prefix: str = "") -> Iterator[tuple[str, set[str]]]:
    """Every command and the options it takes, `--help` aside."""
    for name, command in group.commands.items():
        options = {option for parameter in command.params for option in parameter.opts if option.startswith("--")}
        yield prefix + name, options - {"--help"}
        yield from commands_of(command, f"{prefix}{name} ") if hasattr(command, "commands") else ()


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in ("bench", "reproduce")])
def test_help_teaches_by_example(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--help"]) == 0
    assert f"thinwire {command}" in capsys.readouterr().out.partition("Usage")[2].partition("\n")[2]


def test_the_version_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"thinwire {thinwire.__version__}\n"


@pytest.mark.parametrize("command", ["train", "compare"])
def test_help_lists_what_there_is(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command, "--help"]) == 0
    words = set(re.findall(r"\w+", capsys.readouterr().out))
    assert words >= {*TASKS, *OPTIMIZERS, *SCHEDULES, *TORCH_METHODS}


@pytest.mark.parametrize(
    ("words", "missing", "extras"),
    [
        (["demo"], ["jinja2"], "report"),
        (["compare", "digits", "dense", "--page", "p.html"], ["sklearn", "jinja2"], "tasks,report"),
        (["compare", "logistic", "dense", "--page", "p.html"], ["scipy", "jinja2"], "tasks,report"),
        (["reproduce", "vgc", "--small", "--page", "p.html"], ["sklearn", "jinja2"], "tasks,report"),
        (["reproduce", "memsgd", "--quick", "--page", "p.html"], ["numba", "sklearn", "jinja2"], "fast,tasks,report"),
        (["reproduce", "ef21", "--quick", "--page", "p.html"], ["sklearn", "scipy", "jinja2"], "tasks,report"),
        (["bench", "simulate", "--page", "p.html"], ["scipy", "jinja2"], "tasks,report"),
        (["bench", "lockfree"], ["numba", "sklearn"], "fast,tasks"),
        (["theory", "ef21(topk(count=1))"], ["sklearn", "scipy"], "tasks"),
    ],
)
def test_all_missing_packages_are_named_at_once(
    words: list[str],
    missing: list[str],
    extras: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for package in missing:
        monkeypatch.setitem(sys.modules, package, None)
    assert main(words) == 2
    err = capsys.readouterr().err
    assert " and ".join(map(repr, missing)) in err
    assert f"pip install 'thinwire[{extras}]'" in err


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_bar_has_room_for_the_methods_name(width: int) -> None:
    out = Console(width=width, force_terminal=True, color_system=None, record=True, file=io.StringIO())
    about = {"metric": "accuracy", "percent": True}
    with progress(out, 1, 4, "ddp") as hear:
        config = {"method": "memsgd(topk(0.01))", "seed": 0, "steps": 300}
        hear({"kind": "run", "config": config, "task": about})
        hear({"kind": "step", "step": 150, "loss": 0.1234, "sent_bytes": 2_550_000})
    drawn = out.export_text()
    last = drawn[drawn.rindex("memsgd(") :].rstrip()
    assert last.startswith("memsgd(topk(0.01)) · seed 0")
    assert "150/300" in last
    assert "loss 0.123" in last
    assert ("2.55 MB" in last) == (width >= 80)
    assert ("━" in last) == (width >= 120)
    assert "\n" not in last
    assert len("⠋ ") + len(last) <= width


def test_more_bytes_than_dense_are_called_more(capsys: pytest.CaptureFixture[str]) -> None:
    """The logistic model has 31 parameters: a message's own bytes outweigh them."""
    words = ["compare", "logistic", "dense", "memsgd(topk(0.9))", *QUICK, "--page", "p.html"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert re.search(r"sent \(\d\.\d\d times more than fp32\)", out)
    assert re.search(r"memsgd\(topk\(0.9\)\) .* \d\.\d\d× more +\d\.\d\d× more", out)
    assert not re.search(r"\b0\.\d\d(×| times)", out)
    assert re.search(r"<td>\d\.\d\d× more</td>", Path("p.html").read_text())


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert all(command.split()[0] in out for command in COMMANDS)


@pytest.mark.parametrize("what", ["kernels", "wire"])
def test_bench_measures_side_by_side(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    small = ["--numel", "20000", "--densities", "0.1,0.01", "--repeats", "1"]
    assert main(["bench", what, *small]) == 0
    assert "20,000" in capsys.readouterr().out
    assert main(["bench", what, *small, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert {row["density"] for row in rows} - {None} == {0.1, 0.01}
    assert all(row["over_floor" if what == "kernels" else "over_entropy"] > 0 for row in rows)


def test_bench_refuses_a_density_beyond_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "wire", "--densities", "2"]) == 2
    assert "(0, 1]" in capsys.readouterr().err


def test_train_prints_a_table_and_leaves_a_record(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--method", "memsgd(topk(0.01))", *QUICK]) == 0
    out = capsys.readouterr().out
    assert "memsgd(topk(0.01))" in out
    assert "\x1b" not in out
    (record,) = Path("runs").glob("digits-*.jsonl")
    assert f"record: {record}" in out
    (run,) = read_records([record])
    assert run.provenance["command"].startswith("thinwire train digits --method 'memsgd(topk(0.01))'")


def test_compare_takes_seeds_and_rates_and_report_makes_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "logistic", "dense", "ef21(topk(0.1))", "--seeds", "0,1", "--lr", "0.5,0.25", *QUICK]
    assert main([*words, "--out", "r.jsonl", "--page", "direct.html"]) == 0
    out = capsys.readouterr().out
    assert "±" in out
    assert "report: direct.html" in out
    assert [run.config.lr for run in read_records([Path("r.jsonl")])] == [0.5, 0.5, 0.25, 0.25]
    assert main(["report", "r.jsonl", "--out", "later.html"]) == 0
    assert "report: later.html (4 runs)" in capsys.readouterr().out
    assert Path("later.html").read_text() == Path("direct.html").read_text()


def test_demo_shows_its_methods_and_writes_the_page(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--engine", "sim", "--workers", "2", "--steps", "3", "--seeds", "0", "--out", "d.jsonl"]) == 0
    out = capsys.readouterr().out
    assert "[3/3]" in out
    assert "emulated" not in out
    assert "report: d.html" in out
    assert Path("d.html").exists()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["--rate", "100"], "a rate is a number above 0 and one of kbit, mbit, gbit, such as 100mbit; got '100'"),
        (["--rate", "0mbit"], "a rate is a number above 0"),
        (["--rate", "10mbit", "--engine", "sim"], "a link of 10 Mbit/s joins real processes; simulated workers share"),
    ],
)
def test_a_link_without_sense_is_refused_before_anything_starts(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["demo"], ["train", "digits"], ["compare", "digits", "dense"]):
        assert main([*command, *words]) == 2
        assert problem in capsys.readouterr().err
    assert not list(Path().glob("runs/*"))


def test_train_reads_a_libsvm_file(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [f"{1 if row % 2 else -1} 1:{row % 2} 2:{row}" for row in range(40)]
    Path("rows.txt").write_text("\n".join(rows))
    assert main(["train", "logistic", "--data", "rows.txt", *QUICK]) == 0
    rows[6] = "1 2:x"
    Path("rows.txt").write_text("\n".join(rows))
    assert main(["train", "logistic", "--data", "rows.txt", *QUICK]) == 2
    assert "error: data file rows.txt, line 7: '2:x' is not a pair" in capsys.readouterr().err


def test_info_names_versions_methods_and_tasks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info"]) == 0
    out = capsys.readouterr().out
    assert all(word in out for word in ("torch", "gloo", "memsgd", "topk", "powersgd", "logistic"))


def test_theory_shows_constants_and_step_sizes(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["theory", "ef21(topk(count=1))", "--problem", "l2", "--workers", "3", "--split", "skewed"]
    assert main([*words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["mu"] == 0.1
    assert found["L_averaged"] <= found["L_arithmetic_mean"] <= found["L_quadratic_mean"]
    nonconvex = 1 / (found["L"] + found["L_quadratic_mean"] * found["root_beta_theta"])
    steps = {step["setting"]: step["step"] for step in found["steps"]}
    assert steps["nonconvex"] == pytest.approx(nonconvex)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert f"{steps['PL']:.6e}" in out
    assert f"{found['theta']:.7g}" in out
    assert main(["theory", "econtrol(topk(0.1))"]) == 0
    assert "theory states no step size for econtrol(topk(0.1))" in capsys.readouterr().out


def test_a_step_size_beyond_theory_is_a_warning_with_the_bound(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["theory", "ef21(topk(count=1))", "--json", "--step"]
    assert main([*words, "1"]) == 0
    said = capsys.readouterr()
    found = json.loads(said.out)
    assert found["multiples"] == [1 / step["step"] for step in found["steps"]]
    assert f"admits, {found['steps'][0]['step']:g}; convergence is not guaranteed" in said.err
    assert said.err.count("warning: ") == len(found["steps"])
    assert main([*words, "1e-6"]) == 0
    assert capsys.readouterr().err == ""


def test_a_mistake_in_a_method_is_shown_with_its_caret(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--method", "ef21(topk(2))"]) == 2
    err = capsys.readouterr().err
    assert err.endswith("\n  ef21(topk(2))\n       ^\n")
    assert "Traceback" not in err


def test_an_error_is_printed_as_it_is_even_with_brackets_and_long_lines(capsys: pytest.CaptureFixture[str]) -> None:
    text = "memsgd(topk(0.01, values=[red]wrong[/red]" + " " * 200 + "))"
    assert main(["train", "digits", "--method", text]) == 2
    err = capsys.readouterr().err
    with pytest.raises(SpecError) as caught:
        parse(text)
    assert err == f"error: {caught.value}\n"


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["train", "digit"], "unknown task 'digit'"),
        (["train", "digits", "--workers", "0"], "workers must be a whole number from 1 to 256, got 0"),
        (["train", "digits", "--lr", "-1"], "lr must be a finite number above 0, got -1.0"),
        (["train", "digits", "--engine", "mpi"], "engine must be one of ddp, sim"),
        (["train", "digits", "--data", "x"], "brings its own data"),
        (["train", "logistic", "--data", "no.txt"], "data file no.txt does not exist"),
        (["train", "logistic", "--data", "no.txt", "--engine", "sim"], "data file no.txt does not exist"),
        (["compare", "digits", "dense", "--seeds", "a"], "--seeds takes numbers with commas between them, got 'a'"),
        (["compare", "digits", "dense", "--lr", "1,2"], "--lr takes 1 rate or one for each of the 1 methods"),
        (["compare", "digits", "dense", "dense"], "one is given twice"),
        (["report", "no.jsonl"], "record no.jsonl cannot be read"),
        (["theory", "ef21(topk(count=31))"], "topk(count=31) keeps 31 numbers of 30; take a count of at most 30"),
        (["theory", "ef21(topk(0.1))", "--workers", "570"], "570 workers share 569 rows"),
        (["theory", "ef21(topk(0.1))", "--dataset", "no"], "unknown data set 'no': known is breast_cancer"),
        (["theory", "ef21(topk(0.1))", "--problem", "no"], "the problems are logistic, l2, least-squares"),
        (["theory", "ef21(topk(0.1))", "--split", "no"], "the splits are file, iid, skewed"),
        (["theory", "vgc()"], "there is no theory of vgc()"),
    ],
)
def test_a_mistake_ends_with_code_2_and_a_message(
    words: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    captured = capsys.readouterr()
    assert problem in captured.err
    assert "Traceback" not in captured.err
    assert not list(Path("runs").glob("*")) if Path("runs").exists() else True


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digit", "--debug"]) == 2
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["train"], ["compare", "digits"], ["report"], ["fly"], ["train", "digits", "--fly"]])
def test_an_incomplete_or_unknown_command_ends_with_code_2(words: list[str]) -> None:
    assert main(words) == 2


def test_a_run_that_only_diverges_ends_with_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "digits", "--lr", "1e30", *QUICK, "--steps", "8"]) == 1
    assert "diverged" in capsys.readouterr().out


@pytest.mark.dist
@pytest.mark.slow
def test_real_workers_from_a_fresh_interpreter() -> None:
    words = ["compare", "digits", "dense", "memsgd(topk(0.01))", "--workers", "2", "--steps", "5", "--out", "r.jsonl"]
    program = [sys.executable, "-m", "thinwire.cli.main", *words]
    result = subprocess.run(program, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
    assert "[2/2] memsgd(topk(0.01)) · seed 0: accuracy" in result.stdout
    assert len(read_records([Path("r.jsonl")])) == 2
