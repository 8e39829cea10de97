"""The worker: a process that the launcher starts n times; it trains its share of every run of a job.

python -m thinwire.training.worker JOB.json
"""

from __future__ import annotations

import json
import os
import select
import sys
import threading
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from thinwire.training.config import RunConfig
from thinwire.training.loop import Loop, WarmUp
from thinwire.training.plugins import load_plugin
from thinwire.training.recorder import Recorder
from thinwire.training.run import DistributedRun
from thinwire.training.tasks import load_task

LIFELINE = "lifeline"
"""The named pipe in a job's folder by which workers notice that their launcher is gone: see `launcher.lifeline`."""
ORPHANED = 3
"""The exit code of a worker whose launcher is gone; nobody is left to read it."""


@dataclass(frozen=True)
class Job:
    """Configurations that share one launch of workers, and where their record goes: one JSON file."""

    configs: tuple[RunConfig, ...]
    record: Path
    provenance: Mapping[str, Any]
    folder: Path
    """Where workers leave their failures and the launcher their output."""
    plugins: tuple[Path, ...] = ()
    """Files of the user's own that workers execute before they read the configurations."""

    def write(self) -> Path:
        """Write the job into its folder, for the workers to read."""
        plain = {
            "configs": [config.asdict() for config in self.configs],
            "record": str(self.record.absolute()),
            "provenance": self.provenance,
            "plugins": [str(plugin) for plugin in self.plugins],
        }
        path = self.folder / "job.json"
        path.write_text(json.dumps(plain), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Job:
        """The job that `write` left at `path`."""
        plain = json.loads(path.read_text(encoding="utf-8"))
        plugins = tuple(Path(plugin) for plugin in plain["plugins"])
        for plugin in plugins:
            load_plugin(plugin)
        configs = tuple(RunConfig(**config) for config in plain["configs"])
        return cls(configs, Path(plain["record"]), plain["provenance"], path.parent, plugins)


def work(job: Job) -> None:
    """Train all configurations of the job, one after the other, in one process group."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    try:
        first = job.configs[0]
        task = load_task(first.task, first.data)
        warm_up = WarmUp(DistributedRun, task)
        recorder = Recorder(job.record, job.provenance) if dist.get_rank() == 0 else None
        for config in job.configs:
            seconds = warm_up(config)
            dist.barrier()
            Loop(DistributedRun(config, task), recorder, seconds).go()
        dist.barrier()
    finally:
        dist.destroy_process_group()


def main() -> int:
    """Work; a failure is left in the job's folder for the launcher, which shows it to the user."""
    path = Path(sys.argv[1])
    end_with_launcher(path.parent)
    try:
        work(Job.read(path))
    except Exception as error:
        failure = {
            "time": time.time(),
            "type": type(error).__name__,
            "message": str(error),
            "traceback": traceback.format_exc(),
        }
        (path.parent / f"failure-{os.environ['RANK']}.json").write_text(json.dumps(failure), encoding="utf-8")
        return 1
    return 0


def end_with_launcher(folder: Path) -> None:
    """End this process as soon as the launcher that holds the pipe in `folder` is gone, or at once if it is."""
    pipe = os.open(folder / LIFELINE, os.O_RDONLY | os.O_NONBLOCK)
    threading.Thread(target=_watch, args=(pipe,), daemon=True).start()


def _watch(pipe: int) -> None:
    try:
        os.read(pipe, 1)  # nothing: the launcher was gone before this end was opened, which select does not report
    except BlockingIOError:
        select.select([pipe], [], [])
    os._exit(ORPHANED)


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is written. The interpreter's own shutdown is left out: once in some hundred exits a worker aborted
    # there after all its work was done, most likely by a thread of the process group that let go of a tensor too late.
    os._exit(status)
