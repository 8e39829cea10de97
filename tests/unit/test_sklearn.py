"""The estimators keep scikit-learn's conventions, and train what the lock-free engine trains."""

from __future__ import annotations

import pickle
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")
pytest.importorskip("sklearn")

from scipy.sparse import csr_matrix
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_iris
from sklearn.exceptions import ConvergenceWarning, DataConversionWarning
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils import get_tags
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.estimator_checks import check_supervised_y_2d, parametrize_with_checks

from thinwire.errors import ConfigError, DataError, OversubscriptionWarning, SpecError
from thinwire.linear import Bottou, Decoupled, LockFree, Samples
from thinwire.linear.estimators.fitting import Epochs, Share
from thinwire.sklearn import MemSGDClassifier, MemSGDRegressor

REASON = "a step with weight 2 is not two steps; scikit-learn's own SGD estimators are excused for the same"
EXCUSED = {
    "check_sample_weight_equivalence_on_dense_data": REASON,
    "check_sample_weight_equivalence_on_sparse_data": REASON,
}
GOES_ON = (
    "its second fit begins where the first ended, and is compared with it; SGDRegressor(warm_start=True) fails too"
)
CANCER = load_breast_cancer(return_X_y=True)


@pytest.mark.filterwarnings("ignore")  # the checks fit to noise, two samples, and so on
@parametrize_with_checks(
    [
        MemSGDClassifier(random_state=0),
        MemSGDClassifier(random_state=0, warm_start=True),
        MemSGDRegressor(random_state=0),
        MemSGDRegressor(random_state=0, warm_start=True),
    ],
    expected_failed_checks=lambda _: EXCUSED,
)
def test_scikit_learns_own_checks(estimator: Any, check: Any) -> None:
    if estimator.warm_start and check.func is check_supervised_y_2d:
        pytest.skip(GOES_ON)
    check(estimator)


@pytest.mark.parametrize("estimator", [MemSGDClassifier, MemSGDRegressor])
def test_a_warm_start_takes_targets_in_a_column_too(estimator: Any) -> None:
    """What the check is about that is skipped above."""
    X, y = cancer()
    models = [estimator(random_state=0, max_iter=2, tol=None, warm_start=True).fit(X, y) for _ in range(2)]
    models[0].fit(X, y)
    with pytest.warns(DataConversionWarning, match="A column-vector y was passed"):
        models[1].fit(X, y[:, None])
    assert np.array_equal(models[0].coef_, models[1].coef_)


def test_several_threads_are_not_deterministic_and_say_so() -> None:
    tags = [get_tags(MemSGDRegressor(n_jobs=jobs)).non_deterministic for jobs in (None, 1, 2, -1)]
    assert tags == [False, False, True, True]


def cancer() -> tuple[Any, Any]:
    X, y = CANCER
    return StandardScaler().fit_transform(X), y


def test_a_fit_is_a_run_of_the_engine() -> None:
    X, y = cancer()
    model = MemSGDClassifier(eta0=0.05, max_iter=3, tol=None, fit_intercept=False, random_state=0).fit(X, y)
    seed = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max, size=1)[0])
    samples = Samples.of(X, np.where(y == 1, 1.0, -1.0))
    engine = LockFree(samples, "memsgd(topk(count=1))", Bottou(0.05, 1e-4), regulariser=Decoupled(1e-4), seed=seed)
    for _ in range(3):
        engine.run(len(y))
    assert np.array_equal(model.coef_[0], engine.x)
    assert (model.t_, model.written_, model.n_iter_) == (3 * len(y), 3 * len(y), 3)


@pytest.mark.parametrize("average", ["uniform", "weighted"])
def test_a_mean_is_of_all_iterates_at_which_gradients_were_taken(average: str) -> None:
    """x_0 … x_{T−1}: with the start, without the last."""
    X, y = cancer()
    X, y, given = X[:50], y[:50], {"eta0": 0.05, "alpha": 0.1, "random_state": 0}
    model = MemSGDClassifier(average=average, max_iter=2, tol=None, **given).fit(X, y)
    iterates, every = [np.zeros(31)], MemSGDClassifier(max_iter=1, tol=None, **given)
    seed = int(np.random.RandomState(0).randint(np.iinfo(np.int32).max, size=1)[0])
    samples = Samples.of(X, np.where(y == 1, 1.0, -1.0))
    engine = LockFree(
        samples, every.rule, Bottou(0.05, 0.1), regulariser=Decoupled(0.1), seed=seed, intercept=1.0
    )  # fmt: skip
    for _ in range(99):
        engine.run(1)
        iterates.append(np.append(engine.x, engine.intercept))
    weights = np.ones(100) if average == "uniform" else np.square(1 / (0.1 * 0.05) + np.arange(100))
    mean = np.average(iterates, axis=0, weights=weights)
    assert np.abs(np.append(model.coef_, model.intercept_) - mean).max() < 1e-12


@pytest.mark.parametrize("loss", ["log_loss", "hinge", "squared_error"])
@pytest.mark.parametrize("rule", ["memsgd(topk(count=1))", "memsgd(randk(count=3))", "plain(identity())"])
def test_it_learns_as_well_as_scikit_learns_sgd(loss: str, rule: str) -> None:
    X, y = cancer()
    rate = {"learning_rate": "invscaling", "eta0": 1e-3} if loss == "squared_error" else {}  # its default explodes
    peer = SGDClassifier(loss=loss, random_state=0, **rate)
    model = MemSGDClassifier(loss, rule=rule, random_state=0).fit(X, y)
    assert model.score(X, y) >= peer.fit(X, y).score(X, y) - 0.01


def test_several_classes_are_each_against_the_rest() -> None:
    X, y = load_digits(return_X_y=True)
    X = X / 16
    model = MemSGDClassifier(random_state=0, max_iter=30, tol=None).fit(X, y)
    assert model.coef_.shape == (10, 64)
    assert model.intercept_.shape == (10,)
    assert model.score(X, y) > 0.94
    assert np.allclose(model.predict_proba(X).sum(axis=1), 1)
    assert np.array_equal(model.classes_[model.predict_proba(X).argmax(axis=1)], model.predict(X))


def test_regression_comes_near_the_least_squares() -> None:
    X, y = load_diabetes(return_X_y=True)
    X, y = StandardScaler().fit_transform(X), (y - y.mean()) / y.std()
    best = np.linalg.lstsq(X, y, rcond=None)[0]
    model = MemSGDRegressor(average="weighted", max_iter=200, tol=None, random_state=0).fit(X, y)
    assert model.coef_.shape == (10,)
    assert np.mean((y - model.predict(X)) ** 2) < 1.01 * np.mean((y - X @ best) ** 2)


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3])
def test_a_regressor_does_not_stop_where_its_loss_only_trembles(scaled: bool, size: float) -> None:
    """With the first step sizes the loss of diabetes goes up and down by a third; it stopped after 9 epochs."""
    X, y = load_diabetes(return_X_y=True)
    X = StandardScaler().fit_transform(X) if scaled else X
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # SGDRegressor's: 1,000 epochs are not enough for it
        peer = SGDRegressor(random_state=0).fit(X, y).score(X, y)
    for seed in range(3):
        model = MemSGDRegressor(random_state=seed).fit(X, size * y)
        assert model.score(X, size * y) > peer
        assert model.n_iter_ < 200


@pytest.mark.parametrize("cuts", [False, True])
def test_steps_are_cut_where_the_loss_trembles_and_whole_again_in_the_end(cuts: bool) -> None:
    X, y = load_diabetes(return_X_y=True)
    whole = Bottou(0.9, 1e-4)
    engine = LockFree(Samples.of(X, y, loss="squared"), "memsgd(topk(count=1))", whole, intercept=1.0)
    course = Epochs(engine, 0.3, 5, cuts=cuts)
    losses = []
    while not course.settled:
        course.epoch()
        losses.append(engine.loss())
    assert isinstance(engine.schedule, Share) == cuts
    assert (max(losses[-5:]) - min(losses[-5:]) < 0.6) == cuts
    course.close()
    assert engine.schedule is whole


def test_samples_that_follow_a_fit_meet_whole_steps() -> None:
    X, y = load_diabetes(return_X_y=True)
    model = MemSGDRegressor(random_state=0).fit(X, y)
    model.partial_fit(X, 2 * y).partial_fit(X, 2 * y)
    assert model.predict(X).mean() > 1.5 * y.mean()  # a fifth of a fifth of them would hardly get away from one


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_sparse_rows_give_what_dense_ones_give(dtype: Any) -> None:
    X, y = load_digits(return_X_y=True)
    X, y = (X / 16).astype(dtype), y % 2
    models = [MemSGDClassifier(max_iter=3, tol=None, random_state=0).fit(rows, y) for rows in (X, csr_matrix(X))]
    assert models[0].coef_.dtype == dtype
    tolerance = 64 * np.finfo(dtype).eps * models[0].t_
    assert np.abs(models[0].coef_ - models[1].coef_).max() <= tolerance * np.abs(models[0].coef_).max()


def test_parts_that_come_one_after_the_other_go_on_from_the_memories() -> None:
    """Pickled in between: nothing of what training needs is lost."""
    X, y = cancer()
    whole, parted = (MemSGDClassifier(random_state=0, eta0=0.05) for _ in range(2))
    for part in np.array_split(np.arange(len(y)), 5):
        whole.partial_fit(X[part], y[part], classes=[0, 1])
        parted.partial_fit(X[part], y[part], classes=[0, 1])
        parted = pickle.loads(pickle.dumps(parted))
    assert np.array_equal(whole.coef_, parted.coef_)
    assert whole.t_ == len(y)
    assert whole.score(X, y) > 0.95


def test_a_part_may_be_sparse_where_others_were_dense() -> None:
    X, y = cancer()
    model = MemSGDClassifier(random_state=0).partial_fit(X[:300], y[:300], classes=[0, 1])
    model.partial_fit(csr_matrix(X[300:].astype(np.float32)), y[300:])
    other = MemSGDClassifier(random_state=0).partial_fit(csr_matrix(X[:300]), y[:300], classes=[0, 1])
    other.partial_fit(X[300:], y[300:])
    assert model.score(X, y) > 0.9
    assert other.score(X, y) > 0.9


def test_classes_are_named_first_and_stay() -> None:
    X, y = cancer()
    with pytest.raises(ConfigError, match="classes must be passed on the first call"):
        MemSGDClassifier().partial_fit(X, y)
    with pytest.raises(ConfigError, match="at least 2 classes, got one class"):
        MemSGDClassifier().partial_fit(X, y, classes=[1])
    model = MemSGDClassifier().partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ConfigError, match=r"classes were \[0, 1\] and are \[0, 1, 2\]"):
        model.partial_fit(X, y, classes=[0, 1, 2])
    with pytest.raises(ConfigError, match=r"labels \[7\] are not among classes \[0, 1\]"):
        model.partial_fit(X, np.where(y == 1, 7, 0))


def test_a_warm_start_begins_at_the_last_coefficients_with_the_parameters_of_now() -> None:
    X, y = cancer()
    model = MemSGDClassifier(max_iter=20, tol=None, warm_start=True, random_state=0).fit(X, y)
    before = model.coef_.copy()
    model.set_params(max_iter=1, eta0=1e-9).fit(X, y)
    assert model.t_ == len(y)
    assert np.abs(model.coef_ - before).max() < 1e-5 * np.abs(before).max()
    strong = model.set_params(alpha=1.0, eta0="auto", max_iter=20).fit(X, y)
    assert np.abs(strong.coef_).max() < 0.5 * np.abs(before).max()


def test_a_warm_start_is_for_the_same_classes_and_features() -> None:
    X, y = cancer()
    model = MemSGDClassifier(max_iter=1, tol=None, warm_start=True, random_state=0).fit(X, y)
    with pytest.raises(ConfigError, match=r"classes were \[0, 1\] and are \[0, 7\]"):
        model.fit(X, np.where(y == 1, 7, 0))
    with pytest.raises(ValueError, match="X has 29 features, but MemSGDClassifier is expecting 30"):
        model.fit(X[:, 1:], y)
    assert model.predict(X).shape == y.shape


def test_fit_and_partial_fit_follow_each_other() -> None:
    X, y = cancer()
    model = MemSGDClassifier(max_iter=2, tol=None, warm_start=True, random_state=0)
    model.partial_fit(X, y, classes=[0, 1]).fit(X, y).partial_fit(X, y).fit(X, y)
    assert model.t_ == 2 * len(y)
    assert model.partial_fit(X, y).t_ == 3 * len(y)
    with pytest.raises(ConfigError, match="alpha changed since training began: call fit, or set it back"):
        model.set_params(alpha=1e-2).partial_fit(X, y)


def test_a_first_part_of_short_rows_does_not_make_later_steps_explode() -> None:
    X, y = load_diabetes(return_X_y=True)
    X, y = 10 * StandardScaler().fit_transform(X), (y - y.mean()) / y.std()
    model = MemSGDRegressor(random_state=0).partial_fit(0 * X[:20], y[:20])
    for _ in range(30):
        model.partial_fit(X, y)
    assert model.score(X, y) > 0.4


def test_a_step_size_that_is_too_large_is_noticed() -> None:
    X, y = load_diabetes(return_X_y=True)
    X, y = 10 * StandardScaler().fit_transform(X), (y - y.mean()) / y.std()
    with pytest.warns(ConvergenceWarning, match="the loss rose from .* the step size eta0 is too large"):
        MemSGDRegressor(eta0=0.01, max_iter=1, tol=None, random_state=0).fit(X, y)
    with pytest.raises(ConfigError, match="training diverged"), np.errstate(all="ignore"):
        MemSGDRegressor(eta0=10.0, max_iter=50, tol=None, random_state=0).fit(X, y)


@pytest.mark.parametrize("alpha", [0.0, 0.5, 1.0, 10.0])
@pytest.mark.parametrize("rule", ["memsgd(topk(count=1))", "plain(identity())"])
def test_a_strong_penalty_needs_no_other_step_size(rule: str, alpha: float) -> None:
    """No warning, whatever the order of the samples: about the least loss every step makes it tremble."""
    X, y = load_digits(return_X_y=True)
    X = X / np.linalg.norm(X, axis=1, keepdims=True)
    for seed in range(10):
        MemSGDClassifier(rule=rule, alpha=alpha, max_iter=2, tol=None, random_state=seed).fit(X, y % 2)


@pytest.mark.parametrize("rule", ["memsgd(randk(count=1))", "memsgd(randk(count=10))", "memsgd(threshold(0.01))"])
@pytest.mark.parametrize("jobs", [1, 2])
def test_the_first_step_is_what_a_drawn_memory_bears(rule: str, jobs: int) -> None:
    """One feature of ±1 beside 199 small ones: 1/L of single rows would be far beyond 2p/(2 − p), p = k/d."""
    rng = np.random.default_rng(0)
    X = 0.01 * rng.normal(size=(500, 200))
    X[:, 0] = rng.choice([-1.0, 1.0], 500)
    model = MemSGDRegressor(rule=rule, alpha=0.0, max_iter=40, tol=None, n_jobs=jobs, random_state=0)
    assert model.fit(X, X[:, 0]).score(X, X[:, 0]) > 0.9


def test_a_pickle_holds_the_model_and_not_the_samples() -> None:
    X, y = load_digits(return_X_y=True)
    for rows in (X, csr_matrix(X)):
        model = MemSGDClassifier(max_iter=1, tol=None, random_state=0).fit(rows, y)
        assert len(pickle.dumps(model)) < X.nbytes / 4


def test_a_flush_writes_what_the_memory_holds() -> None:
    X, y = cancer()
    kept, flushed = (
        MemSGDClassifier(max_iter=1, tol=None, eta0=0.05, flush=flush, random_state=0).fit(X, y)
        for flush in (False, True)
    )
    memory = kept._engines[0].memory.sum(axis=0)
    assert np.abs(memory).max() > 0
    assert np.array_equal(flushed.coef_[0], kept.coef_[0] - memory)


def test_pipelines_and_grids() -> None:
    X, y = CANCER
    grid = {"memsgdclassifier__rule": ["memsgd(topk(count=1))", "plain(identity())"], "memsgdclassifier__alpha": [1e-3]}
    model = make_pipeline(StandardScaler(), MemSGDClassifier(random_state=0))
    assert GridSearchCV(model, grid, cv=3).fit(X, y).best_score_ > 0.95


def test_weights_of_zero_leave_samples_out() -> None:
    X, y = cancer()
    wrong = np.where(np.arange(len(y)) < 250, 1 - y, y)
    weight = (np.arange(len(y)) >= 250).astype(float)
    assert MemSGDClassifier(random_state=0).fit(X, wrong, weight).score(X, y) > 0.95


@pytest.mark.parametrize("weight", ["balanced", {0: 3.0}, {0: 0.5, 1: 2.0, 2: 1.0}])
def test_weights_of_classes_are_weights_of_their_samples(weight: Any) -> None:
    X, y = load_iris(return_X_y=True)
    X, y = X[30:], y[30:]  # 20, 50 and 50
    own = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    of_classes = compute_sample_weight(weight if weight == "balanced" else {0: 1.0, 1: 1.0, 2: 1.0} | weight, y)
    given = {"max_iter": 5, "tol": None, "random_state": 0}
    model = MemSGDClassifier(class_weight=weight, **given).fit(X, y, own)
    assert np.array_equal(model.coef_, MemSGDClassifier(**given).fit(X, y, own * of_classes).coef_)
    assert not np.array_equal(model.coef_, MemSGDClassifier(**given).fit(X, y, own).coef_)
    if weight != "balanced":
        parts = [MemSGDClassifier(class_weight=each, random_state=0) for each in (weight, None)]
        for part, weights in zip(parts, (None, of_classes), strict=True):
            part.partial_fit(X, y, classes=[0, 1, 2], sample_weight=weights)
        assert np.array_equal(parts[0].coef_, parts[1].coef_)


def test_balanced_classes_weigh_what_they_weigh_in_scikit_learn() -> None:
    X, y = cancer()
    few = np.concatenate([np.flatnonzero(y == 1), np.flatnonzero(y == 0)[:12]])
    X, y = X[few], y[few]
    peer = LogisticRegression(C=1 / (0.1 * len(y)), class_weight="balanced").fit(X, y).decision_function(X)
    given = {"alpha": 0.1, "max_iter": 300, "tol": None, "random_state": 0}
    balanced, unequal = (
        MemSGDClassifier(class_weight=weight, **given).fit(X, y).decision_function(X) for weight in ("balanced", None)
    )
    assert np.abs(balanced - peer).max() < 0.1 * np.abs(unequal - peer).max()


def test_weights_of_classes_that_cannot_be() -> None:
    X, y = cancer()
    with pytest.raises(ConfigError, match=r'class_weight must be None, "balanced" or \{label: weight\}, got \[1, 2\]'):
        MemSGDClassifier(class_weight=[1, 2]).fit(X, y)
    with pytest.raises(ConfigError, match='class_weight="balanced" needs all samples, and partial_fit has some'):
        MemSGDClassifier(class_weight="balanced").partial_fit(X, y, classes=[0, 1])
    with pytest.raises(ValueError, match=r"The classes, \[.*\], are not in class_weight"):
        MemSGDClassifier(class_weight={7: 2.0}).fit(X, y)
    with pytest.raises(DataError, match="weights must be at least 0, got -1"):
        MemSGDClassifier(class_weight={0: -1.0}).fit(X, y)


def test_two_threads_learn_too() -> None:
    X, y = cancer()
    assert MemSGDClassifier(n_jobs=2, random_state=0, max_iter=50, tol=None).fit(X, y).score(X, y) > 0.95
    with pytest.warns(OversubscriptionWarning, match="512 threads on"):
        MemSGDClassifier(n_jobs=512, max_iter=1, tol=None).fit(X, y)


def test_an_interrupted_fit_keeps_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    X, y = cancer()
    epochs = []

    def look(course: Epochs) -> None:
        epochs.append(course)
        if len(epochs) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(Epochs, "_look", look)
    with pytest.warns(ConvergenceWarning, match=f"interrupted after {2 * len(y)} steps: the model so far is kept"):
        model = MemSGDClassifier(random_state=0).fit(X, y)
    assert model.n_iter_ == 2
    assert model.score(X, y) > 0.9


def test_too_few_epochs_are_a_warning_and_enough_are_not() -> None:
    X, y = cancer()
    with pytest.warns(ConvergenceWarning, match="2 epochs were not enough for the loss to settle within tol=0.0001"):
        MemSGDClassifier(max_iter=2, random_state=0).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert MemSGDClassifier(tol=1e-3, random_state=0).fit(X, y).n_iter_ < 100


def test_probabilities_are_the_logistic_loss_s_alone() -> None:
    assert hasattr(MemSGDClassifier(), "predict_proba")
    assert not hasattr(MemSGDClassifier("hinge"), "predict_proba")
    X, y = cancer()
    far = MemSGDClassifier(max_iter=1, tol=None, random_state=0).fit(X, y).predict_proba(1e6 * X)
    assert np.isfinite(far).all()


@pytest.mark.parametrize(
    ("given", "error", "problem"),
    [
        ({"loss": "squared_hinge"}, ConfigError, "loss must be one of log_loss, hinge, squared_error, got"),
        ({"alpha": -1}, ConfigError, "alpha must be a finite number of at least 0, got -1"),
        ({"max_iter": 0}, ConfigError, "max_iter must be a whole number of at least 1, got 0"),
        ({"alpha": "much"}, ConfigError, "alpha must be a finite number of at least 0, got 'much'"),
        ({"max_iter": 2.5}, ConfigError, "max_iter must be a whole number of at least 1, got 2.5"),
        ({"tol": np.nan}, ConfigError, "tol must be a number of at least 0, or None for all epochs, got nan"),
        ({"n_jobs": 1.5}, ConfigError, "n_jobs must be a number of threads, or negative .* got 1.5"),
        ({"flush": True, "average": "uniform"}, ConfigError, "flush changes the last iterate"),
        ({"n_iter_no_change": 0}, ConfigError, "n_iter_no_change must be a whole number of at least 1, got 0"),
        ({"eta0": 0}, ConfigError, 'eta0 must be a positive step size or "auto", got 0'),
        ({"eta0": 2e4}, ConfigError, r"eta0 \* alpha must be below 1, .*got 20000 \* 0.0001: take an eta0 below 10000"),
        (
            {"eta0": 0.5, "alpha": 2.0, "learning_rate": "constant"},
            ConfigError,
            "take an eta0 below 0.5, a smaller alpha",
        ),
        ({"average": "mean"}, ConfigError, "average must be one of final, uniform, weighted, got 'mean'"),
        ({"learning_rate": "optimal"}, ConfigError, "learning_rate must be one of bottou, constant, got 'optimal'"),
        ({"n_jobs": 0}, ConfigError, "n_jobs must be a number of threads"),
        ({"rule": "memsgd(topk(count=31))"}, ConfigError, "keeps more than the 30 coordinates"),
        ({"rule": "memsgd(topp(1))"}, SpecError, "topp"),
        ({"rule": "ef21(topk(count=1))"}, ConfigError, "the lock-free engine runs memsgd or plain"),
    ],
)
def test_bad_parameters_are_errors_at_fit(given: dict[str, Any], error: type[Exception], problem: str) -> None:
    with pytest.raises(error, match=problem):
        MemSGDClassifier(**given).fit(*cancer())


def test_bad_samples_are_errors() -> None:
    X, y = cancer()
    for bad in (np.nan, np.inf):
        broken = X.copy()
        broken[3, 4] = bad
        with pytest.raises(ValueError, match="contains"):
            MemSGDClassifier().fit(broken, y)
    with pytest.raises(ValueError, match="inconsistent numbers of samples"):
        MemSGDClassifier().fit(X, y[:-1])
    with pytest.raises(DataError, match="weights must be at least 0, got -1"):
        MemSGDClassifier().fit(X, y, -np.ones(len(y)))
    with pytest.raises(ConfigError, match="at least 2 classes, got one class"):
        MemSGDClassifier().fit(X, np.zeros(len(y)))
