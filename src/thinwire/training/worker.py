"""The worker: what torch's launcher starts n times; it trains its share of every run of a job.

python -m thinwire.training.worker JOB.json
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from thinwire.training.distributed import DistributedRun
from thinwire.training.job import Job
from thinwire.training.lifeline import end_with_launcher
from thinwire.training.loop import Loop
from thinwire.training.recorder import Recorder
from thinwire.training.tasks import load_task
from thinwire.training.warm_up import WarmUp


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
    """Work; a failure is left in the job's folder for the parent, which shows it to the user."""
    job = Job.read(Path(sys.argv[1]))
    end_with_launcher(job.folder)
    try:
        work(job)
    except Exception as error:
        failure = {
            "time": time.time(),
            "type": type(error).__name__,
            "message": str(error),
            "traceback": traceback.format_exc(),
        }
        job.failure_path(int(os.environ["RANK"])).write_text(json.dumps(failure), encoding="utf-8")
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # All is written. The interpreter's own shutdown is left out: once in some hundred exits a worker aborted
    # there after all its work was done, most likely by a thread of the process group that let go of a tensor too late.
    os._exit(status)
