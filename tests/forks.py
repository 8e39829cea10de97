"""Processes for tests, forked from one server that has imported torch and loaded the kernels.

A spawned process takes three seconds of a core before it begins; a forked one takes a tenth of a second. The server is
a fresh process without threads: it has not touched autograd, gloo or CUDA, none of which outlive a fork.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch.distributed as dist
from torch.distributed.launcher.api import LaunchConfig

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(
    ["pytest", "hypothesis", "sklearn.datasets", "thinwire.training.worker", "tests.faults.warm"]
)


def run_script(script: Path, folder: Path, ranks: int = 1) -> tuple[bool, str]:
    """Run a file in `folder` as `python FILE` would, or as the ranks that torch's launcher starts.

    It gives whether every rank ended well, and what all of them printed.
    """
    return _run_ranks(_run_file, (str(script),), folder, ranks)


def forked_launch(settings: LaunchConfig, _: str) -> Callable[..., None]:
    """In place of torch's `elastic_launch`, for tests of what workers do: they start as `run_script` starts ranks.

    That the launcher's own processes work, and what becomes of their failures, other tests show.
    """

    def launch(*arguments: str) -> None:
        assert arguments[:2] == ("-m", "thinwire.training.worker")
        with tempfile.TemporaryDirectory() as folder:
            ended_well, printed = _run_ranks(_work, (arguments[2],), Path(folder), settings.nproc_per_node)
        assert ended_well, printed

    return launch


def _run_ranks(target: Callable[..., None], arguments: tuple[str, ...], folder: Path, ranks: int) -> tuple[bool, str]:
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # as the launcher: on any free port
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    outputs = [folder / f"printed-{rank}" for rank in range(ranks)]
    children = []
    for rank, output in enumerate(outputs):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        environment = common | {name: str(value) for name, value in own.items()} if ranks > 1 else {}
        children.append(CONTEXT.Process(target=_run, args=(str(folder), str(output), environment, target, arguments)))
    for child in children:
        child.start()
    for child in children:
        child.join()
    printed = "".join(output.read_text() for output in outputs)
    return all(child.exitcode == 0 for child in children), printed


def _run(
    folder: str, output: str, environment: dict[str, str], target: Callable[..., None], arguments: tuple[str, ...]
) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ.update(environment)
    os.chdir(folder)
    target(*arguments)


def _run_file(script: str) -> None:
    sys.path.insert(0, os.getcwd())
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")


def _work(job: str) -> None:
    from thinwire.training import worker

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    sys.argv = [worker.__file__, job]
    sys.exit(worker.main())
