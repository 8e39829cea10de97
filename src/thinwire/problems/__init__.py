"""Training tasks: digits, text and logistic regression, whose data come with a dependency, and CIFAR-10."""

from thinwire.problems.catalogue import TASKS, load_task
from thinwire.problems.task import Batch, Defaults, Task

__all__ = ["TASKS", "Batch", "Defaults", "Task", "load_task"]
