"""Memory of a DDP step above dense training, in bytes a parameter: two gloo ranks on this machine.

    python benchmarks/bench_memory.py [--parameters 20000000] [--rules 'memsgd(topk(0.01))' 'ef21(topk(0.01))' ...]

Each rule runs in processes of its own, with a model of a third of the parameters and with all of them: what grows from
one to the other is what a parameter takes (imports and compiled code do not). `steady` is the resident memory between
steps, `peak` the most that was resident in later steps (the kernel's high-water mark, set back after the first steps),
both less those of dense DDP.
"""

from __future__ import annotations

import argparse
import multiprocessing
import tempfile
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

RULES = [
    "memsgd(topk(0.01))",
    "memsgd(sign())",
    "ef21(topk(0.01))",
    "ef21sgdm(topk(0.01))",
    "econtrol(topk(0.01))",
    "vgc(1.5)",
]
WIDTH = 1000
BATCH = 4


def resident(mark: str) -> int:
    """Bytes by the kernel's account: VmRSS now, VmHWM at most."""
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(mark))


def reset_peak() -> None:
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def train(rank: int, store: str, rule: str | None, layers: int, answers: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(store, 2), rank=rank, world_size=2)
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(layers)))
    ddp = DistributedDataParallel(model, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if rule is not None:
        import thinwire

        chosen = thinwire.parse(rule)
        moments = thinwire.moments.watch(ddp, rule=chosen) if thinwire.Need.MOMENTS in chosen.needs else None  # type: ignore[union-attr]
        thinwire.attach(ddp, chosen, optimizer, moments=moments)
    for step in range(8):
        if step == 5:
            reset_peak()
        optimizer.zero_grad()
        ddp(torch.randn(BATCH, WIDTH)).square().mean().backward()
        optimizer.step()
    answers.put((resident("VmRSS"), resident("VmHWM")))
    dist.barrier()


def measured(rule: str | None, layers: int) -> tuple[int, int]:
    """Steady and peak bytes of the larger of two ranks."""
    context = multiprocessing.get_context("spawn")
    answers = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        ranks = [context.Process(target=train, args=(r, f"{folder}/store", rule, layers, answers)) for r in range(2)]
        for rank in ranks:
            rank.start()
        found = [answers.get(timeout=300) for _ in ranks]
        for rank in ranks:
            rank.join()
    return max(one[0] for one in found), max(one[1] for one in found)


def growth(rule: str | None, layers: int) -> tuple[float, float]:
    """Steady and peak bytes that one more parameter takes."""
    few, many = measured(rule, layers // 3), measured(rule, layers)
    added = (layers - layers // 3) * WIDTH**2
    return (many[0] - few[0]) / added, (many[1] - few[1]) / added


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--parameters", type=int, default=30_000_000)
    parser.add_argument("--rules", nargs="*", default=RULES)
    options = parser.parse_args()
    layers = max(3, options.parameters // WIDTH**2)
    dense = growth(None, layers)
    print(f"{layers * WIDTH**2:,} parameters, 2 ranks, gloo; dense DDP: {dense[0]:.1f} bytes each, peak {dense[1]:.1f}")
    print(f"{'bytes a parameter above dense':34} {'state':>6} {'steady':>7} {'peak':>6}")
    for rule in options.rules:
        steady, peak = growth(rule, layers)
        print(f"{rule:34} {state_bytes(rule):6} {steady - dense[0]:7.1f} {peak - dense[1]:6.1f}")


def state_bytes(rule: str) -> int:
    import thinwire

    return 4 * sum(not slot.single for slot in thinwire.parse(rule).slots)  # type: ignore[union-attr]


if __name__ == "__main__":
    main()
