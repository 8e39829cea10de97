"""Training tasks (digits, text, logistic regression, CIFAR-10), and sums of many workers' functions for theory."""

from thinwire.problems.catalogue import TASKS, load_task
from thinwire.problems.datasets import Dataset, load_dataset
from thinwire.problems.finite_sum import FiniteSum
from thinwire.problems.objectives import (
    OBJECTIVES,
    l2_logistic_regression,
    least_squares,
    least_squares_minimiser,
    logistic_regression,
    objective,
)
from thinwire.problems.shards import Shards, file_order, iid, label_skewed, split_rows
from thinwire.problems.task import Batch, Defaults, Task

__all__ = [
    "OBJECTIVES",
    "TASKS",
    "Batch",
    "Dataset",
    "Defaults",
    "FiniteSum",
    "Shards",
    "Task",
    "file_order",
    "iid",
    "l2_logistic_regression",
    "label_skewed",
    "least_squares",
    "least_squares_minimiser",
    "load_dataset",
    "load_task",
    "logistic_regression",
    "objective",
    "split_rows",
]
