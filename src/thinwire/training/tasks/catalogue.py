"""The catalogue of tasks: their names on the command line, and how each is loaded."""

from __future__ import annotations

from pathlib import Path

from thinwire.errors import ConfigError
from thinwire.training.tasks.cifar10 import Cifar10
from thinwire.training.tasks.digits import Digits
from thinwire.training.tasks.logistic import Logistic
from thinwire.training.tasks.task import Task
from thinwire.training.tasks.text import Text

TASKS: dict[str, type[Task]] = {"digits": Digits, "text": Text, "logistic": Logistic, "cifar10": Cifar10}


def check_task(name: str, data: str | None = None) -> type[Task]:
    """The class of the task `name`; nothing is loaded yet."""
    if name not in TASKS:
        raise ConfigError(f"unknown task {name!r}; the tasks are {', '.join(TASKS)}")
    if data is not None and TASKS[name].reads is None:
        readers = " and ".join(f"{reader!r} ({kind.reads})" for reader, kind in TASKS.items() if kind.reads)
        raise ConfigError(f"the task {name!r} brings its own data, got --data {data}; these read some: {readers}")
    return TASKS[name]


def load_task(name: str, data: str | None = None) -> Task:
    """The task `name` with its data in memory."""
    kind = check_task(name, data)
    if kind is Logistic:
        return Logistic.load(Path(data) if data else None)
    if kind is Cifar10:
        return Cifar10.load(data)
    return Text.load() if kind is Text else Digits.load()
