"""Training: configurations in, one record out, on either engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from thinwire.errors import ConfigError
from thinwire.report.destination import begun, check_destination
from thinwire.report.provenance import provenance
from thinwire.report.record_file import TRAINING
from thinwire.training.admission import check_rules
from thinwire.training.config import RunConfig
from thinwire.training.device import check_device, fast_products, one_thread
from thinwire.training.loop import Loop, WarmUp
from thinwire.training.recorder import Listener, Recorder, Tail
from thinwire.training.records import RunRecord, finished_runs, read_records
from thinwire.training.run import SimulatedRun
from thinwire.training.tasks import Task, load_task

SHARED = ("task", "data", "engine", "workers", "device")
"""What all runs of one command have in common: they share the data and one launch of workers."""


def train(
    configs: Sequence[RunConfig],
    record: Path,
    command: Sequence[str] = (),
    listener: Listener | None = None,
    *,
    resume: bool = False,
    force: bool = False,
    experiment: str = TRAINING,
) -> list[RunRecord]:
    """Train the runs one after the other, write their record, and read it back.

    `listener` is called with every line of the record as it is written. With `resume` a record may exist: runs that it
    holds to their end are not trained again. With `force` one that exists is replaced. The record's head names the
    `experiment`, which decides what `thinwire report` draws.
    """
    _check_shared(configs)
    check_device(configs[0].device)
    if not resume:
        check_destination(record, "record", "--out", force=force)
    done = {run.config for run in finished_runs(record)} if resume else set()
    configs = [config for config in configs if config not in done]
    if configs:
        task = load_task(configs[0].task, configs[0].data)
        check_rules(configs, task)
        with begun(record, resume=resume):
            origin = provenance(command, configs[0].device, experiment)
            if configs[0].engine == "sim":
                _simulate(configs, task, record, origin, listener)
            else:
                _distribute(configs, record, origin, listener)
    return read_records([record])


def _check_shared(configs: Sequence[RunConfig]) -> None:
    if not configs:
        raise ConfigError("no runs were given; name at least one method")
    for name in SHARED:
        values = {getattr(config, name) for config in configs}
        if len(values) > 1:
            raise ConfigError(f"runs of one command share their {name}, got {values}; use a command for each")


def _simulate(
    configs: Sequence[RunConfig], task: Task, record: Path, origin: Mapping[str, Any], listener: Listener | None
) -> None:
    recorder, warm_up = Recorder(record, origin, listener), WarmUp(SimulatedRun, task)
    try:
        with one_thread(), fast_products(configs[0].device):
            for config in configs:
                seconds = warm_up(config)
                Loop(SimulatedRun(config, task), recorder, seconds).go()
    finally:
        recorder.close()


def _distribute(
    configs: Sequence[RunConfig], record: Path, origin: Mapping[str, Any], listener: Listener | None
) -> None:
    from thinwire.training.launcher import launch  # torch's launcher is slow to import

    with Tail(record, listener or (lambda line: None)):
        launch(configs, record, origin)
