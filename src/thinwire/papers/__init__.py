"""The papers' experiments, and the list of all whose records `thinwire report` draws.

from thinwire.papers import Experiment, register

register(Experiment("mine", one_line_each("mine", MyRun.of_plain), sections))
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from thinwire.advice.held_out import ADVISOR_EXPERIMENT
from thinwire.errors import ConfigError, RecordError
from thinwire.lab.sections import LAB_EXPERIMENT
from thinwire.papers.adaptive.sections import ADAPTIVE_EXPERIMENT
from thinwire.papers.ef21.sections import EF21_EXPERIMENT
from thinwire.papers.memsgd.sections import MEMSGD_EXPERIMENT
from thinwire.papers.vgc.sections import VGC_EXPERIMENT
from thinwire.report.page import Section
from thinwire.report.record_file import Experiment, Record, read_record
from thinwire.scale.scaled import SCALE_EXPERIMENT
from thinwire.training.sections import TRAINING_EXPERIMENT

__all__ = ["EXPERIMENTS", "Experiment", "read_sections", "register"]

EXPERIMENTS: dict[str, Experiment[Any]] = {
    one.name: one
    for one in (
        TRAINING_EXPERIMENT,
        EF21_EXPERIMENT,
        MEMSGD_EXPERIMENT,
        VGC_EXPERIMENT,
        ADAPTIVE_EXPERIMENT,
        LAB_EXPERIMENT,
        SCALE_EXPERIMENT,
        ADVISOR_EXPERIMENT,
    )
}
"""By the name that stands in a record's head."""


def register(experiment: Experiment[Any]) -> None:
    """Let `thinwire report` draw records whose head has the experiment's name."""
    if EXPERIMENTS.setdefault(experiment.name, experiment) is not experiment:
        raise ConfigError(f"the experiment {experiment.name!r} is registered already; choose another name")


def read_sections(paths: Sequence[Path]) -> tuple[list[Section], int]:
    """What a page shows of the records, those of one experiment taken together; and the number of runs in them."""
    groups: dict[str, list[Record]] = {}
    for path in paths:
        record = read_record(path)
        _check_known(record)
        groups.setdefault(record.experiment, []).append(record)
    found, count = [], 0
    for name, records in groups.items():
        runs = [run for record in records for run in EXPERIMENTS[name].read(record.lines)]
        found += _with_origins(EXPERIMENTS[name].sections(runs), records) if runs else []
        count += len(runs)
    if not found:
        raise RecordError(f"{', '.join(map(str, paths))}: no run came to its end, so there is nothing to draw")
    return found, count


def _check_known(record: Record) -> None:
    if record.experiment not in EXPERIMENTS:
        raise RecordError(
            f"record {record.path}, line 1: the experiment {record.experiment!r} is not known; known are "
            f"{', '.join(EXPERIMENTS)}. Name the file that registers it by --plugin"
        )


def _with_origins(sections: list[Section], records: Sequence[Record]) -> list[Section]:
    """The sections, the last with what the records' heads tell, unless they tell of every run themselves."""
    heads = [record.provenance for record in records if record.provenance]
    if not sections or not heads or any(section.provenance for section in sections):
        return sections
    told = [_origin(records[0].experiment, head) for head in heads]
    return [*sections[:-1], replace(sections[-1], provenance=told)]


def _origin(experiment: str, head: Mapping[str, Any]) -> dict[str, str]:
    """A head without its command: pages are passed on, and a command holds paths of the user's machine."""
    rest = {name: value for name, value in head.items() if name != "command"}
    return {
        "title": f"{experiment} · {head.get('time', '')}",
        "json": json.dumps(rest, indent=2, ensure_ascii=False),
    }
