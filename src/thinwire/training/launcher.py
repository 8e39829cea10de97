"""The launcher: n worker processes through torch's own launcher, on this machine alone."""

from __future__ import annotations

import errno
import gc
import json
import logging
import os
import signal
import sys
import tempfile
import uuid
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from thinwire import errors
from thinwire.errors import ThinwireError
from thinwire.training.config import RunConfig
from thinwire.training.plugins import LOADED
from thinwire.training.worker import LIFELINE, Job

SHUTDOWN_SECONDS = 5
NO_FOLDER = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.ENOENT)
"""What the system says of a folder for temporary files that cannot be used."""


def launch(configs: Sequence[RunConfig], record: Path, provenance: Mapping[str, Any]) -> None:
    """Train the runs on workers to their end; the first worker's failure is raised as its own error here."""
    try:
        with tempfile.TemporaryDirectory(prefix="thinwire-") as folder:
            _launch(Job(tuple(configs), record, provenance, Path(folder), tuple(LOADED)))
    except OSError as error:
        if error.errno not in NO_FOLDER:
            raise
        raise ThinwireError(
            f"no temporary folder for the workers: {error}; make room there, or set TMPDIR to another folder"
        ) from error


def _launch(job: Job) -> None:
    with _quiet(), _environment(), lifeline(job.folder):
        failure = _attempt(job)
        gc.collect()
    if failure is not None:
        raise failure


def _attempt(job: Job) -> BaseException | None:
    """Run the workers; what went wrong, if anything did."""
    arguments = ["-m", "thinwire.training.worker", str(job.write())]
    try:
        elastic_launch(_settings(job.folder, job.configs[0].workers), sys.executable)(*arguments)
    except ChildFailedError as failed:
        return _explain(job, {rank: failure.exitcode for rank, failure in failed.failures.items()})
    except SignalException:
        return KeyboardInterrupt()
    return None


def _settings(folder: Path, workers: int) -> LaunchConfig:
    """A rendezvous of this process alone on 127.0.0.1, at a free port; no restarts; output into files."""
    known = {field.name for field in fields(LaunchConfig)}  # torch 2.11 has no shutdown_timeout
    limit: dict[str, Any] = {"shutdown_timeout": SHUTDOWN_SECONDS} if "shutdown_timeout" in known else {}
    return LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=workers,
        run_id=uuid.uuid4().hex,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        max_restarts=0,
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL),
        **limit,
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """No log lines of the launcher: what the user needs to know comes as an error.

    torch 2.13 leaves the workers' output files to the garbage collector, which complains where warnings are errors.
    """
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            yield
    finally:
        logging.disable(before)


@contextmanager
def _environment() -> Iterator[None]:
    """Workers get one thread each, and gloo the loopback interface unless the user chose another."""
    extra = {"OMP_NUM_THREADS": "1"}
    if sys.platform == "linux" and "GLOO_SOCKET_IFNAME" not in os.environ:
        extra["GLOO_SOCKET_IFNAME"] = "lo"
    before = dict(os.environ)
    os.environ.update(extra)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def lifeline(folder: Path) -> Iterator[None]:
    """Hold a named pipe in `folder` open while the context is: workers end when it closes.

    The launcher holds the end for writing and never writes. The system closes it with the process, even on SIGKILL,
    and whoever waits at the other end is woken. Torch's launcher gives workers a session of their own and nothing to
    inherit, so that neither a signal to the terminal's group nor a plain pipe would reach them.
    """
    path = folder / LIFELINE
    os.mkfifo(path, 0o600)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # opening to write would else wait for one
    writer = os.open(path, os.O_WRONLY)
    os.close(reader)
    try:
        yield
    finally:
        os.close(writer)


def _explain(job: Job, exitcodes: Mapping[int, int]) -> ThinwireError:
    """What happened first: a worker's death by a signal, else the earliest error, one of ours before others'.

    The rest follows from it: ranks that wait for a lost one see its connection closed.
    """
    reports = [report for path in job.folder.glob("failure-*.json") if (report := _report(path))]
    killed = [rank for rank, code in exitcodes.items() if code < 0 and code != -signal.SIGTERM]  # the launcher's own
    if killed:
        name = signal.Signals(-exitcodes[killed[0]]).name
        return ThinwireError(
            f"worker {killed[0]} was killed by {name}; is there memory for {job.configs[0].workers} workers?\n"
            f"{_tail(job, killed[0])}".rstrip()
        )
    if not reports:
        rank, code = next(iter(exitcodes.items()))
        return ThinwireError(f"worker {rank} ended with exit code {code} and no error of its own.\n{_tail(job, rank)}")
    first = min(reports, key=lambda report: (_kind(report) is None, report["time"]))
    error = _rebuild(first)
    error.add_note(first["traceback"])
    return error


def _report(path: Path) -> dict[str, Any] | None:
    """What a worker left of its failure; None where the disk was too full for it."""
    try:
        report: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        return None
    return report


def _kind(report: dict[str, Any]) -> type[ThinwireError] | None:
    kind = getattr(errors, report["type"], None)
    return kind if isinstance(kind, type) and issubclass(kind, ThinwireError) else None


def _rebuild(report: dict[str, Any]) -> ThinwireError:
    """The worker's error again; one of ours keeps its type whatever its constructor takes."""
    kind = _kind(report)
    if kind is None:
        return ThinwireError(
            f"a worker failed: {report['type']}: {report['message']}\nRun again with --debug for more."
        )
    error = kind.__new__(kind)
    error.args = (report["message"],)
    return error


def _tail(job: Job, rank: int, lines: int = 15) -> str:
    """The last lines that the rank wrote to its standard error."""
    logs = sorted((job.folder / "logs").glob(f"**/{rank}/stderr.log"))
    return "\n".join(logs[-1].read_text(errors="replace").splitlines()[-lines:]) if logs else ""
