"""The examples of frameworks: real runs on two CPU processes, held against themselves and against the plain loop.

A framework's run is a script, `NAME_run.py`, started as by torch's launcher: it ends well where all it asserts holds.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.forks import run_script

FOLDER = Path(__file__).parent
PACKAGES = {"lightning": "pytorch_lightning", "accelerate": "accelerate", "trainer": "transformers"}


@pytest.mark.dist
@pytest.mark.parametrize("name", PACKAGES)
def test_a_framework_trains_resumes_and_agrees_with_the_plain_loop(name: str, tmp_path: Path) -> None:
    pytest.importorskip(PACKAGES[name], exc_type=ModuleNotFoundError)
    ended_well, printed = run_script(FOLDER / f"{name}_run.py", tmp_path, ranks=2)
    assert ended_well, printed
    assert printed.count("ended well") == 2, printed


@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.exhaustive
def test_ray_trains_goes_on_and_agrees_with_the_simulation(tmp_path: Path) -> None:
    """Starting a cluster takes most of a minute, and each run as long."""
    pytest.importorskip("ray", exc_type=ModuleNotFoundError)
    command = [sys.executable, str(FOLDER / "ray_run.py")]
    with tempfile.TemporaryDirectory() as short:  # Ray's sockets have their names in 107 bytes
        own = {"HOME": str(tmp_path), "RAY_TMPDIR": short, "RAY_USAGE_STATS_ENABLED": "0"}
        done = subprocess.run(command, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ended well" in done.stdout
