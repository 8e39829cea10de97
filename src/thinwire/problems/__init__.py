"""Sums of many workers' functions, for theory and the papers: linear models on data that workers share."""

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

__all__ = [
    "OBJECTIVES",
    "Dataset",
    "FiniteSum",
    "Shards",
    "file_order",
    "iid",
    "l2_logistic_regression",
    "label_skewed",
    "least_squares",
    "least_squares_minimiser",
    "load_dataset",
    "logistic_regression",
    "objective",
    "split_rows",
]
