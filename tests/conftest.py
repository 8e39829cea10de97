"""What holds for every test: one thread, hypothesis without deadlines, GPU tests only where there is a GPU."""

import gc
import os
from pathlib import Path

# Before torch is imported, and inherited by every process a test starts: sums are only bitwise comparable between
# processes that add in the same order, and several workers on two cores are faster with one thread each.
os.environ["OMP_NUM_THREADS"] = "1"
# Threads that wait give their core away. By default they spin, and where more of them wait than there are cores, each
# of torch's short loops on two threads takes milliseconds: a test of 0.7 s took 21 s.
os.environ["OMP_WAIT_POLICY"] = "PASSIVE"

import pytest
import torch
from hypothesis import HealthCheck, settings

torch.set_num_threads(1)

# The first example pays for imports and compiling, and a busy machine is not a failure: no example has a deadline, and
# nobody complains that examples are slow to draw.
settings.register_profile("local", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--regen-golden` writes the golden trajectories anew; the diff is then to be read. `--exhaustive` runs all."""
    parser.addoption("--regen-golden", action="store_true", help="rewrite tests/golden/trajectories/*.json")
    parser.addoption("--exhaustive", action="store_true", help="run what is marked `exhaustive` too (make test-all)")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` on a machine without CUDA, and `libsvm` where there are no such files.

    What is marked `exhaustive` repeats, in more circumstances, what other tests hold: it waits to be asked for.
    """
    if not config.getoption("exhaustive"):
        waiting = [item for item in items if item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=waiting)
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
    lacking = {
        "gpu": None if torch.cuda.is_available() else "needs a CUDA device",
        "libsvm": None if LIBSVM else "needs a9a and phishing as LIBSVM files: set THINWIRE_DATA",
    }
    for item in items:
        for marker, reason in lacking.items():
            if reason and item.get_closest_marker(marker):
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish() -> None:
    """Set aside what is alive now: torch, and 12,000 tests that the garbage collector would look at again and again."""
    gc.collect()
    gc.freeze()


def _libsvm_folder() -> str | None:
    """The folder of a9a and phishing: THINWIRE_DATA, or `shared/data` beside the repository."""
    places = [os.environ.get("THINWIRE_DATA", ""), str(Path(__file__).parents[2] / "shared" / "data")]
    names = ("a9a*", "libsvm/a9a*")
    found = (place for place in places if place and any(any(Path(place).glob(name)) for name in names))
    return next(found, None)


LIBSVM = _libsvm_folder()


@pytest.fixture(scope="session")
def libsvm_folder() -> str:
    """What tests marked `libsvm` give as `data`."""
    assert LIBSVM is not None
    return LIBSVM


@pytest.fixture
def forked_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A launch forks its workers, which takes a tenth of a second; an interpreter that imports all takes four."""
    from tests.forks import forked_launch

    monkeypatch.setattr("thinwire.training.launcher.elastic_launch", forked_launch)
