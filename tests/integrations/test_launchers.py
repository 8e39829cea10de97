"""One script, unchanged, as a job of Ray Train, under torchrun and under Slurm, by the lines that the docs give."""

from __future__ import annotations

import ast
import os
import random
import re
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from tests.forks import run_script
from tests.integrations.runs import example, simulated

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs" / "launching.md").read_text()
SCRIPT = "examples/ray_digits.py"
RESULT = re.compile(r"^\{'loss': .*\}$", re.MULTILINE)
OF_LAUNCHERS = re.compile(r"RANK|WORLD_SIZE|LOCAL_RANK|MASTER_|SLURM_|TORCHELASTIC_|GLOO_")
SLURM = {  # what Slurm has: two tasks with their variables, and the names behind a list of hosts
    "srun": """
for rank in 0 1; do SLURM_PROCID=$rank SLURM_LOCALID=$rank "$@" & tasks+=" $!"; done
for task in $tasks; do wait "$task" || exit; done
""",
    "scontrol": """[ "$1 $2" = "show hostnames" ] && tr , '\\n' <<< "$3" """,
}


def run_line(line: str, folder: Path, **variables: str) -> str:
    """What a line of the docs prints where `python` is this one and no launcher has left a variable."""
    environment = {name: value for name, value in os.environ.items() if not OF_LAUNCHERS.match(name)}
    environment["PATH"] = f"{folder}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    line = line.replace(SCRIPT, str(ROOT / SCRIPT))
    command = ["bash", "-c", line]
    done = subprocess.run(command, cwd=folder, env=environment | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def check(printed: str, ranks: int, epochs: int = 3) -> None:
    """Every rank arrives where the simulation does, bit for bit, and has sent as much."""
    model, simulation = simulated(epochs)
    results: list[dict[str, Any]] = [ast.literal_eval(line) for line in RESULT.findall(printed)]
    assert len(results) == ranks, printed
    for result in results:
        assert result["epoch"] == epochs
        assert result["parameters"] == example("ray")["digest"](model)
    if epochs == 3:  # a ledger counts from the beginning of its run
        assert {result["thinwire/sent_bytes"] for result in results} == {
            simulation.ledger.metrics()["thinwire/sent_bytes"]
        }


def line_of(launcher: str) -> str:
    """The line with which the docs start the script."""
    (line,) = re.findall(rf"^{launcher} .*{SCRIPT}'?$", DOCS, re.MULTILINE)
    return line


@pytest.mark.dist
def test_under_torchrun_and_a_second_run_goes_on(tmp_path: Path) -> None:
    check(run_line(line_of("torchrun"), tmp_path), ranks=2)
    ended_well, printed = run_script(ROOT / SCRIPT, tmp_path, ranks=2)
    assert ended_well, printed
    check(printed, ranks=2, epochs=6)


@pytest.mark.dist
def test_under_slurm_in_the_job_that_the_docs_have(tmp_path: Path) -> None:
    (job,) = re.findall(r"```text\n(#!/bin/bash\n.*?)```", DOCS, re.DOTALL)
    line = line_of("srun")
    assert line.replace(SCRIPT, "script.py") in job.splitlines()
    (tmp_path / "bin").mkdir()
    for name, text in SLURM.items():
        (tmp_path / "bin" / name).write_text("#!/bin/bash\n" + text)
        (tmp_path / "bin" / name).chmod(0o755)
    number = str(free_port() - 20_000)  # the job makes its port of it
    variables = {"SLURM_JOB_ID": number, "SLURM_JOB_NODELIST": "localhost", "SLURM_NTASKS": "2"}
    job = job.replace("script.py", SCRIPT).replace("=eth0", "=lo")
    check(run_line(job, tmp_path, SLURM_CPUS_PER_TASK="1", **variables), ranks=2)


def free_port() -> int:
    """One that no program listens on, below those that the system gives to connections."""
    while True:
        with socket.socket() as listener:
            port = random.randrange(20_000, 32_000)
            try:
                listener.bind(("localhost", port))
            except OSError:
                continue
            return port


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.exhaustive
def test_under_ray_train_on_a_local_cluster(tmp_path: Path) -> None:
    """Starting a cluster takes most of a minute."""
    pytest.importorskip("ray", exc_type=ModuleNotFoundError)
    with tempfile.TemporaryDirectory() as short:  # Ray's sockets have their names in 107 bytes
        check(run_line(line_of("python"), tmp_path, HOME=str(tmp_path), RAY_TMPDIR=short), ranks=1)
