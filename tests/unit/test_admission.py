"""What an engine would refuse is refused before processes start and before other methods are trained."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from thinwire.errors import ThinwireError
from thinwire.training import RunConfig, train


@pytest.mark.parametrize("engine", ["ddp", "sim"])
@pytest.mark.parametrize(
    ("method", "settings", "problem"),
    [
        ("marina(qsgd(15), 0.1)", {}, "needs .*: a step here has one backward pass"),
        ("ef21(qsgd(1))", {}, "needs a contraction, but qsgd"),
        ("vgc(2.0)", {"batch": 2}, "nothing could pass alpha"),
        ("vgc(2.0)", {"task": "text"}, "needs second moments that no exact layer gives"),
    ],
)
def test_a_rule_that_the_engine_refuses_is_refused_before_anything_starts(
    method: str, settings: dict[str, object], problem: str, engine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even the methods before it are trained."""

    def started(*_: object) -> None:
        raise AssertionError("training began")

    for name in ("_simulate", "_distribute"):
        monkeypatch.setattr(sys.modules["thinwire.training.train"], name, started)  # `train` hides its module
    configs = [
        RunConfig.of(str(settings.get("task", "digits")), each, workers=2, engine=engine, batch=settings.get("batch"))
        for each in ("dense", method)
    ]
    with pytest.raises(ThinwireError, match=problem):
        train(configs, tmp_path / "r.jsonl")
    assert list(tmp_path.iterdir()) == []
