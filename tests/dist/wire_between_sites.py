"""Step times of two sites of two hosts, behind wires that `tc` shapes: `python -m tests.dist.wire_between_sites`.

Each host is a process in a network namespace; 10 Gbit/s join the hosts of a site, 100 Mbit/s the sites. Methods take
turns, round after round. It needs root.
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
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.exchange import Hierarchy
from thinwire.lab.namespaces import DEVICE, Namespaces, network
from thinwire.lab.setting import Cable
from thinwire.report.provenance import provenance

HOSTS, SITES = 4, 2
RULE = "memsgd(topk(0.01))"
METHODS = ("alone", "ddp", "ddp fp16", f"ddp {RULE}", "hierarchy plain(identity())", f"hierarchy {RULE}",
           "hsdp", f"fsdp {RULE}")  # fmt: skip
BATCH = 16


def model() -> nn.Sequential:
    """1.9 M parameters."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 10))


class Method:
    """One method on one host."""

    def __init__(self, name: str) -> None:
        self.name = name
        kind, _, rule = name.partition(" ")
        mesh = init_device_mesh("cpu", (SITES, HOSTS // SITES), mesh_dim_names=("site", "member"))
        net: Any = model()
        if kind in ("fsdp", "hsdp"):
            own = mesh["member"] if kind == "fsdp" else mesh
            for layer in net[::2]:
                fully_shard(layer, mesh=own)
            self.model: Any = fully_shard(net, mesh=own)
        else:
            self.model = DistributedDataParallel(net)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01)
        self.handle = None
        if kind == "fsdp":
            self.handle = thinwire.attach_fsdp(self.model, rule, self.optimizer, mesh=mesh)
        elif kind == "hierarchy" or rule == RULE:
            exchange = Hierarchy(SITES) if kind == "hierarchy" else None
            self.handle = thinwire.attach(self.model, rule, self.optimizer, exchange=exchange)
        elif rule == "fp16":
            self.model.register_comm_hook(None, fp16_compress_hook)

    def step(self, x: torch.Tensor, y: torch.Tensor) -> None:
        self.optimizer.zero_grad()
        with self.model.no_sync() if self.name == "alone" else nullcontext():
            nn.functional.cross_entropy(self.model(x), y).backward()
        self.optimizer.step()


def host(rank: int, store: str) -> None:
    """Take the turns that come on stdin; only the first host is told, and tells the others."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, HOSTS), rank=rank, world_size=HOSTS)
    methods = [Method(name) for name in METHODS]
    generator = torch.Generator().manual_seed(rank)
    x, y = torch.randn(BATCH, 784, generator=generator), torch.randint(10, (BATCH,), generator=generator)
    while True:
        order = torch.tensor([int(word) for word in sys.stdin.readline().split()] if rank == 0 else [0, 0])
        dist.broadcast(order, 0)
        place, steps = order.tolist()
        if steps == 0:
            break
        dist.barrier()
        start = time.perf_counter()
        for _ in range(steps):
            methods[place].step(x, y)
        dist.barrier()
        if rank == 0:
            print(json.dumps(time.perf_counter() - start), flush=True)
    dist.destroy_process_group()


def measured(net: Namespaces, rounds: int, steps: int) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "GLOO_SOCKET_IFNAME": DEVICE, "OMP_NUM_THREADS": "1"}
        hosts = [
            subprocess.Popen(
                ["ip", "netns", "exec", net.of(rank), sys.executable, "-m", __spec__.name, "--host", str(rank),
                 "--store", f"{folder}/store"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
            )
            for rank in range(HOSTS)
        ]  # fmt: skip
        try:
            return taken_turns(net, hosts[0], rounds, steps)
        finally:
            for each in hosts:
                each.kill()
                each.wait()


def taken_turns(net: Namespaces, first: subprocess.Popen[str], rounds: int, steps: int) -> list[dict[str, Any]]:
    assert first.stdin is not None
    assert first.stdout is not None
    seconds: list[list[float]] = [[] for _ in METHODS]
    crossed: list[list[float]] = [[] for _ in METHODS]
    for turn in range(-1, rounds):
        for place in range(len(METHODS)):
            for many in (1, steps) if turn >= 0 else (3,):
                before = net.trunk_bytes()
                first.stdin.write(f"{place} {many}\n")
                first.stdin.flush()
                taken = float(first.stdout.readline())
            if turn >= 0:
                seconds[place].append(taken / steps)
                crossed[place].append(max(b - a for a, b in zip(before, net.trunk_bytes(), strict=True)) / steps)
    first.stdin.write("0 0\n")
    first.stdin.close()
    first.wait()
    return [
        {
            "method": name,
            "ms": [round(1e3 * each, 2) for each in own],
            "median_ms": round(1e3 * statistics.median(own), 2),
            "site_bytes": round(statistics.median(through)),
        }
        for name, own, through in zip(METHODS, seconds, crossed, strict=True)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--inside", default="10gbit")
    parser.add_argument("--between", default="100mbit")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--host", type=int)
    parser.add_argument("--store")
    options = parser.parse_args()
    if options.host is not None:
        return host(options.host, options.store)
    with network(HOSTS, SITES) as net:
        net.shape(Cable.of(options.inside, options.inside))
        net.shape_trunks(Cable.of(options.between, options.between))
        rows = measured(net, options.rounds, options.steps)
    dense = next(row["median_ms"] for row in rows if row["method"] == "ddp")
    for row in rows:
        print(f"{row['method']:32} {row['median_ms']:9.1f} ms  {dense / row['median_ms']:6.1f} x  "
              f"{row['site_bytes'] / 1e3:10.1f} kB leave a site")  # fmt: skip
    if options.out is not None:
        head = {
            "kind": "sites",
            "hosts": HOSTS,
            "sites": SITES,
            "inside": options.inside,
            "between": options.between,
            "parameters": sum(p.numel() for p in model().parameters()),
            "batch": BATCH,
            "provenance": provenance(["python", "-m", __spec__.name, *sys.argv[1:]], experiment="sites"),
        }
        options.out.write_text(json.dumps({**head, "rows": rows}, indent=1) + "\n")
    return None


if __name__ == "__main__":
    main()
