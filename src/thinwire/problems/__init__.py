"""Training tasks on data that comes with a dependency: digits, text and logistic regression."""

from thinwire.problems.catalogue import TASKS, load_task
from thinwire.problems.task import Batch, Defaults, Task

__all__ = ["TASKS", "Batch", "Defaults", "Task", "load_task"]
