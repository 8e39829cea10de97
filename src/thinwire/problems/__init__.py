"""Sums of many workers' functions, for theory and the papers: linear models on data that workers share."""

from thinwire.problems.datasets import Dataset as Dataset
from thinwire.problems.datasets import load_dataset as load_dataset
from thinwire.problems.finite_sum import FiniteSum as FiniteSum
from thinwire.problems.objectives import OBJECTIVES as OBJECTIVES
from thinwire.problems.objectives import l2_logistic_regression as l2_logistic_regression
from thinwire.problems.objectives import least_squares as least_squares
from thinwire.problems.objectives import least_squares_minimiser as least_squares_minimiser
from thinwire.problems.objectives import logistic_regression as logistic_regression
from thinwire.problems.objectives import objective as objective
from thinwire.problems.shards import Shards as Shards
from thinwire.problems.shards import file_order as file_order
from thinwire.problems.shards import iid as iid
from thinwire.problems.shards import label_skewed as label_skewed
from thinwire.problems.shards import split_rows as split_rows
