"""What holds for every test: one thread, hypothesis without deadlines, GPU tests only where there is a GPU."""

import os

# Before torch is imported, and inherited by every process a test starts: sums are only bitwise comparable between
# processes that add in the same order, and several workers on two cores are faster with one thread each.
os.environ["OMP_NUM_THREADS"] = "1"

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)

# deadline=None: the first example pays for imports and warm-up, and a busy machine is not a failure.
settings.register_profile("local", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--regen-golden` writes the golden trajectories anew; the diff is then to be read."""
    parser.addoption("--regen-golden", action="store_true", help="rewrite tests/golden/trajectories/*.json")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `gpu` on a machine without CUDA."""
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))
