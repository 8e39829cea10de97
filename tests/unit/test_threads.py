"""The kernels' pool of threads: it also serves a process that was forked from one that has used it."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest

threads = pytest.importorskip("thinwire.ops.cpu.threads", exc_type=ImportError)

FORK = multiprocessing.get_context("fork")
LIMIT = 300.0  # a child that hangs is a failure; one that a busy machine starves is not
NUMEL = 4 * threads.SMALLEST_SHARE

pytestmark = pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels use two threads, torch itself one: its own threads (OpenMP's) do not survive a fork."""
    monkeypatch.setattr(threads, "torch", SimpleNamespace(get_num_threads=lambda: 2))


def squares(numel: int = NUMEL) -> list[int]:
    return threads.in_parallel(lambda share, begin, end: (end - begin) ** 2, numel)


def test_a_forked_child_has_a_pool_of_its_own() -> None:
    expected = squares()
    here, there = FORK.Pipe(duplex=False)
    child = FORK.Process(target=lambda: there.send(squares()))
    assert answer(child, here) == expected
    assert squares() == expected  # and the parent's is as it was


def test_a_grandchild_too() -> None:
    here, there = FORK.Pipe(duplex=False)

    def middle() -> None:
        squares()
        grandchild = FORK.Process(target=lambda: there.send(squares()))
        grandchild.start()
        grandchild.join(LIMIT)

    expected = squares()
    assert answer(FORK.Process(target=middle), here) == expected


def answer(child: multiprocessing.process.BaseProcess, here: Connection) -> object:
    """What a child sends; killed if it does not."""
    child.start()
    try:
        assert here.poll(LIMIT), "the forked child hangs"
        return here.recv()
    finally:
        child.kill()
        child.join()


SWEEP = """
import multiprocessing, torch
from thinwire import Key, Layout, TopK
from thinwire.ops import backend
from thinwire.ops.cpu import threads

torch.set_num_threads(1)  # OpenMP's threads do not survive a fork; the kernels' own do, and there are two of them
threads.torch = type("Two", (), {"get_num_threads": staticmethod(lambda: 2)})
NUMEL = 4 * threads.SMALLEST_SHARE

def chosen(seed):
    x = torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))
    with backend("numba"):
        return TopK(0.0001)(x, Layout.of([("x", 0, (NUMEL,))]), Key(0, 0, 0)).positions.tolist()

expected = [chosen(seed) for seed in range(3)]
with multiprocessing.get_context("fork").Pool(2) as workers:
    print(workers.map(chosen, range(3)) == expected)
"""


def test_kernels_find_the_same_in_forked_workers() -> None:
    """A sweep in a program of its own: what other tests have done with torch's threads is no matter."""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", SWEEP], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "True", done.stderr
