"""A rule from outside loses nothing, runs in every engine, and on the command line with --plugin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from tests.extending.authored import BlockTop, Corrected
from tests.extending.runs import check_every_engine
from tests.laws import test_rule_laws as laws
from tests.laws.gradients import LAYOUTS

from thinwire import Identity, Layout, TopK, parse
from thinwire.authoring import ConfigError, Feedback
from thinwire.cli.main import main
from thinwire.training.records import read_records

AUTHORED = Path(__file__).with_name("authored.py")
ADDED: list[Feedback] = [Corrected(TopK(0.2)), Corrected(BlockTop(3), momentum=0.5), Corrected(Identity())]


@pytest.mark.parametrize("rule", ADDED, ids=str)
def test_the_laws_hold(rule: Feedback) -> None:
    laws.test_parse_reads_what_str_writes(rule=rule)
    laws.test_parse_reads_pythons_spelling(rule=rule)
    laws.test_save_and_load_mid_run_is_the_uninterrupted_run(rule=rule)
    laws.test_another_layout_makes_no_difference(rule=rule)


@pytest.mark.parametrize("layout", LAYOUTS[:4], ids=str)
def test_without_momentum_nothing_is_lost(layout: Layout) -> None:
    sim = laws.simulation(Corrected(TopK(0.2), momentum=0.0), layout)
    sent, given = torch.zeros(layout.numel, dtype=torch.float64), torch.zeros(layout.numel, dtype=torch.float64)
    for step in range(5):
        numbers = torch.arange(layout.numel, dtype=torch.float64)
        gradients = [torch.sin(numbers * (step + 1) + worker) for worker in range(laws.WORKERS)]
        sent += laws.exchange(sim, layout, gradients)
        given += torch.stack(gradients).mean(0)
    kept = torch.stack([laws.slot(sim, worker, "error", layout) for worker in range(laws.WORKERS)]).mean(0)
    assert ((sent + kept - given).abs() <= 64 * torch.finfo(torch.float64).eps).all()


@pytest.mark.dist
def test_simulation_and_processes_agree(tmp_path: Path) -> None:
    check_every_engine("corrected(blocktop(4), momentum=0.5)", tmp_path)


@pytest.mark.dist
@pytest.mark.usefixtures("forked_workers")
@pytest.mark.parametrize("engine", ["ddp", "sim"])
def test_the_command_line_knows_it_by_plugin(engine: str, tmp_path: Path) -> None:
    """In workers too, which execute the file themselves; the record carries the method's text."""
    own, record = tmp_path / "own.py", tmp_path / "record.jsonl"
    own.write_text(
        AUTHORED.read_text()
        .replace('"corrected"', f'"corrected_{engine}"')
        .replace("Corrected", f"Corrected{engine}")
        .replace("BlockTop", f"Block{engine}")
        .replace('"blocktop"', f'"block_{engine}"')
        .replace("Halve", f"Halve{engine}")
        .replace('"halved"', f'"halved_{engine}"')
        .replace("= 200", f"= {201 if engine == 'ddp' else 202}")
    )
    method = f"corrected_{engine}(block_{engine}(4))"
    words = ["train", "digits", "-m", method, "-n", "2", "--steps", "4", "--engine", engine]
    assert main([*words, "--plugin", str(own), "--out", str(record)]) == 0
    (run,) = read_records([record])
    assert run.config.method == method
    assert parse(run.config.method).name == f"corrected_{engine}"


def test_a_record_of_an_unknown_method_is_read_as_its_text(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    assert (
        main(
            [
                "train",
                "digits",
                "-m",
                "memsgd(topk(0.1))",
                "-n",
                "1",
                "--steps",
                "2",
                "--engine",
                "sim",
                "--out",
                str(record),
            ]
        )
        == 0
    )
    record.write_text(record.read_text().replace("memsgd(topk(0.1))", "elsewhere(topk(0.1))"))
    (run,) = read_records([record])
    assert run.config.method == "elsewhere(topk(0.1))"
    assert json.loads(record.read_text().splitlines()[-1])
    with pytest.raises(ConfigError, match="--plugin"):
        parse(run.config.method)


def test_a_bad_plugin_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", "--plugin", str(tmp_path / "none.py")]) == 2
    assert "there is no such file" in " ".join(capsys.readouterr().err.split())
    bad = tmp_path / "bad.py"
    bad.write_text("1 / 0")
    assert main(["info", "--plugin", str(bad)]) == 2
    assert "ZeroDivisionError: division by zero" in " ".join(capsys.readouterr().err.split())
