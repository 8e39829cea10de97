"""Mem-SGD as scikit-learn estimators; `thinwire.sklearn` is their door."""

from thinwire.linear.estimators.classifier import MemSGDClassifier as MemSGDClassifier
from thinwire.linear.estimators.regressor import MemSGDRegressor as MemSGDRegressor
