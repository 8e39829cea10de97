"""Workers end with their launcher, even one that was killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from thinwire.errors import RecordWarning
from thinwire.training import read_records, worker
from thinwire.training.launcher import lifeline
from thinwire.training.worker import ORPHANED

LINUX = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")


def workers_of(launcher: int) -> set[int]:
    """The processes that it started; a worker leads a session of its own."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, parent = stat.read_text().rpartition(")")[2].split()[:2]
        except OSError:  # it ended meanwhile
            continue
        if int(parent) == launcher and state != "Z":
            found.add(int(stat.parent.name))
    return found


def alive(process: int) -> bool:
    """Whether it runs; one that ended and that nobody waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
    """Whether it came true; the limit is only for what never does."""
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


@LINUX
@pytest.mark.dist
@pytest.mark.slow
@pytest.mark.timeout(400)
def test_killing_the_launcher_ends_its_workers(tmp_path: Path) -> None:
    record = tmp_path / "r.jsonl"
    words = ["train", "digits", "-m", "dense", "--workers", "2", "--steps", "1000000", "--out", str(record)]
    program = [sys.executable, "-m", "thinwire.cli.main", *words]
    there = {**os.environ, "TMPDIR": str(tmp_path)}  # where a killed launcher leaves its workers' folder
    launcher = subprocess.Popen(program, stdout=subprocess.DEVNULL, env=there)
    workers: set[int] = set()
    try:
        assert wait_for(lambda: record.exists() and record.stat().st_size > 0, 240), "training did not begin"
        workers = workers_of(launcher.pid)
        assert len(workers) == 2
        launcher.kill()
        launcher.wait()
        assert wait_for(lambda: not any(map(alive, workers)), 60), "workers go on without their launcher"
    finally:
        launcher.kill()
        launcher.wait()
        for worker in filter(alive, workers):
            os.kill(worker, signal.SIGKILL)
    with pytest.warns(RecordWarning, match="has no end line: it was cut off at step"):
        assert read_records([record])[0].cut_off


WORKER = "import runpy, sys, time; from pathlib import Path; end = runpy.run_path(sys.argv[1])['end_with_launcher']; "
WORKER += "end(Path(sys.argv[2])); print('on', flush=True); time.sleep(100)"


def start_worker(folder: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER, worker.__file__, str(folder)], stdout=subprocess.PIPE, text=True
    )


def test_a_worker_ends_when_the_pipe_is_closed_and_not_before(tmp_path: Path) -> None:
    with lifeline(tmp_path):
        worker = start_worker(tmp_path)
        assert worker.stdout is not None
        assert worker.stdout.readline() == "on\n"
        assert worker.poll() is None
    worker.communicate()
    assert worker.returncode == ORPHANED


def test_a_worker_that_comes_too_late_ends_at_once(tmp_path: Path) -> None:
    with lifeline(tmp_path):
        pass
    worker = start_worker(tmp_path)
    worker.communicate()
    assert worker.returncode == ORPHANED
