"""Mem-SGD as scikit-learn estimators: linear models trained on all cores, a few coordinates written in a step."""

from thinwire.extras import check_packages

check_packages(dict.fromkeys(("sklearn", "numba"), "sklearn"), "thinwire.sklearn")

from thinwire.sklearn.classifier import MemSGDClassifier as MemSGDClassifier  # noqa: E402
from thinwire.sklearn.regressor import MemSGDRegressor as MemSGDRegressor  # noqa: E402
