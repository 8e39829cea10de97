"""The kernels' pool of threads: it also serves a process that was forked from one that has used it."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from types import SimpleNamespace

import pytest
import torch

from thinwire.compressors import TopK
from thinwire.layout import Layout
from thinwire.ops import Key, backend

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


def chosen(seed: int) -> list[int]:
    """What a kernel of several shares finds."""
    x = torch.randn(NUMEL, generator=torch.Generator().manual_seed(seed))
    with backend("numba"):
        payload = TopK(0.0001)(x, Layout.of([("x", 0, (NUMEL,))]), Key(0, 0, 0))
    out = torch.zeros(NUMEL)
    payload.add_to(out)
    return out.nonzero().squeeze(1).tolist()


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


def test_kernels_find_the_same_in_forked_workers() -> None:
    seeds = range(3)
    expected = [chosen(seed) for seed in seeds]
    with FORK.Pool(2) as workers:
        assert workers.map_async(chosen, seeds).get(LIMIT) == expected
