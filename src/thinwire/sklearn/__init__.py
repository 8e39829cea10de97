"""Mem-SGD as scikit-learn estimators: linear models trained on all cores, a few coordinates written in a step."""

from thinwire.sklearn.classifier import MemSGDClassifier as MemSGDClassifier
from thinwire.sklearn.regressor import MemSGDRegressor as MemSGDRegressor
