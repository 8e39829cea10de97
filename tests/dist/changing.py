"""A wire whose rate changes in mid-run: how soon a method follows, on namespaces of this machine.

    python -m tests.dist.changing --hosts 4 --task text --method auto --rates 10mbit,1gbit,10mbit,none --steps 100

It takes root, `ip` and `tc`. Rank 0 calls `tc` between two of its steps; nobody is told. For each rate: what a step
took in the first 50 steps and after them, and the steps at which the method changed its mind.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from thinwire.lab.contender import Contender
from thinwire.lab.host import PORT
from thinwire.lab.namespaces import Namespaces, address, enter, network
from thinwire.lab.setting import Cable, LabSetting, lab_method
from thinwire.training.tasks import load_task

SOON = 50


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=4)
    parser.add_argument("--task", default="text")
    parser.add_argument("--method", default="auto")
    parser.add_argument("--rates", default="10mbit,1gbit,10mbit,none")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--replay", type=float)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--net")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def cables(rates: str) -> list[Cable]:
    return [Cable.of(rate, rate) for rate in rates.split(",")]


def main() -> None:
    """Start one process a rank in a network of their own, and show what rank 0 noted."""
    asked = options()
    if asked.rank is not None:
        return host(asked)
    with network(asked.hosts) as net, tempfile.TemporaryDirectory() as folder:
        net.shape(cables(asked.rates)[0])
        out = Path(folder) / "noted.json"
        start = [sys.executable, "-m", "tests.dist.changing", *sys.argv[1:], "--net", net.name, "--out", str(out)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        children = [subprocess.Popen([*start, "--rank", str(rank)], env=environment) for rank in range(asked.hosts)]
        try:
            assert all(child.wait() == 0 for child in children)
        finally:
            for child in children:
                child.kill()
                child.wait()
        show(json.loads(out.read_text()), asked)


def host(asked: argparse.Namespace) -> None:
    """Train behind every rate in turn."""
    torch.set_num_threads(1)
    net, wires = Namespaces(asked.net, asked.hosts), cables(asked.rates)
    enter(net.of(asked.rank))
    place, limit = f"tcp://{address(0)}:{PORT}", timedelta(minutes=5)
    dist.init_process_group("gloo", init_method=place, rank=asked.rank, world_size=asked.hosts, timeout=limit)
    method = lab_method(asked.method)
    setting = LabSetting(hosts=asked.hosts, cables=(wires[0],), task=asked.task, methods=(method,), replay=asked.replay)
    contender = Contender(method, setting, load_task(asked.task), asked.rank)
    seconds = []
    for wire in wires:
        if asked.rank == 0:
            net.shape(wire)
        start = time.perf_counter()
        for _ in range(asked.steps):
            contender.step()
            now = time.perf_counter()
            seconds.append(now - start)
            start = now
    if asked.rank == 0:
        asked.out.write_text(json.dumps({"seconds": seconds, "explained": contender.explained()}))
    dist.barrier()
    sys.stdout.flush()
    os._exit(0)


def show(noted: dict[str, object], asked: argparse.Namespace) -> None:
    """A line for each rate, then what the method says of itself."""
    seconds: list[float] = noted["seconds"]  # type: ignore[assignment]
    print(f"{asked.method} on {asked.task}, {asked.hosts} hosts, {asked.steps} steps at each rate; ms a step")
    print(f"{'wire':>12} {'first step':>11} {f'to {SOON}, mean':>12} {'then, median':>13}")
    for place, wire in enumerate(cables(asked.rates)):
        own = [1e3 * each for each in seconds[place * asked.steps : (place + 1) * asked.steps]]
        after = statistics.median(own[SOON:]) if len(own) > SOON else float("nan")
        soon = statistics.fmean(own[:SOON])
        print(f"{wire!s:>12} {own[0]:11.1f} {soon:12.1f} {after:13.1f}   from step {place * asked.steps}")
    print(noted["explained"])


if __name__ == "__main__":
    main()
