"""Processes for tests, forked from one server that has imported torch and loaded the kernels.

A spawned process takes three seconds of a core before it begins; a forked one takes a tenth of a second. The server is
a fresh process without threads: it has not touched autograd, gloo or CUDA, none of which outlive a fork.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import sys
from pathlib import Path

import torch.distributed as dist

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["pytest", "hypothesis", "torch.nn.parallel", "thinwire", "tests.faults.warm"])


def run_script(script: Path, folder: Path, ranks: int = 1) -> tuple[bool, str]:
    """Run a file in `folder` as `python FILE` would, or as the ranks that torch's launcher starts.

    It gives whether every rank ended well, and what all of them printed.
    """
    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # as the launcher: on any free port
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    outputs = [folder / f"printed-{rank}" for rank in range(ranks)]
    children = []
    for rank, output in enumerate(outputs):
        own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
        environment = common | {name: str(value) for name, value in own.items()} if ranks > 1 else {}
        children.append(CONTEXT.Process(target=_run, args=(str(script), str(folder), str(output), environment)))
    for child in children:
        child.start()
    for child in children:
        child.join()
    printed = "".join(output.read_text() for output in outputs)
    return all(child.exitcode == 0 for child in children), printed


def _run(script: str, folder: str, output: str, environment: dict[str, str]) -> None:
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.environ.update(environment)
    os.chdir(folder)
    sys.path.insert(0, folder)
    sys.argv = [script]
    runpy.run_path(script, run_name="__main__")
