"""Typed errors."""

from __future__ import annotations

import pickle

import pytest

from thinwire import errors
from thinwire.errors import ConfigError, NonFiniteGradient, SpecError, ThinwireError


def test_a_caret_stands_under_the_column() -> None:
    lines = str(SpecError("ef21(topk(2))", 5, "problem")).splitlines()
    assert lines[0] == "problem"
    assert lines[1][lines[2].index("^") :] == "topk(2))"


@pytest.mark.parametrize(
    "error", [SpecError("text", 2, "problem"), NonFiniteGradient(3, "w", 7), NonFiniteGradient(None, "w", 7)]
)
def test_errors_survive_the_way_between_processes(error: ThinwireError) -> None:
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


def test_a_non_finite_gradient_names_rank_parameter_step_and_remedy() -> None:
    message = str(NonFiniteGradient(3, "layer.weight", 7))
    for word in ("rank 3", "'layer.weight'", "step 7", "no rank's state has advanced", 'nonfinite="skip"'):
        assert word in message


def test_every_error_is_a_thinwire_error_and_a_builtin_one() -> None:
    named = [e for e in vars(errors).values() if isinstance(e, type) and issubclass(e, Exception)]
    kinds = [kind for kind in named if not issubclass(kind, Warning)]
    assert len(kinds) >= 9
    for kind in kinds:
        assert issubclass(kind, ThinwireError)
        assert kind is ThinwireError or issubclass(kind, ValueError | RuntimeError | ArithmeticError | OSError)
    assert issubclass(SpecError, ConfigError)
