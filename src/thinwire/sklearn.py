"""Mem-SGD as scikit-learn estimators: linear models trained on all cores, a few coordinates written in a step."""

from thinwire.extras import check_packages

check_packages(dict.fromkeys(("sklearn", "numba"), "sklearn"), "thinwire.sklearn")

from thinwire.linear.estimators import MemSGDClassifier as MemSGDClassifier  # noqa: E402
from thinwire.linear.estimators import MemSGDRegressor as MemSGDRegressor  # noqa: E402
