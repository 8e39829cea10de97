"""How much memory a rule takes beside dense training: its state, once more to undo a step, and little else."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BYTES = {  # a parameter, float32, beside dense DDP: docs/ddp.md states them
    "memsgd(topk(0.01))": 8,
    "memsgd(sign())": 8,
    "memsgd(topk(0.01), memory=int8)": 2,
    "dgc(topk(0.01))": 16,
    "dgc(topk(0.01), memory=int8)": 4,
    "memadam(topk(0.01))": 16,
    "memadam(topk(0.01), memory=int8)": 10,
    "ef21(topk(0.01))": 16,
    "ef21sgdm(topk(0.01))": 24,
    "econtrol(topk(0.01))": 24,
    "vgc(1.5)": 20,  # with the second moments themselves
}

PROGRAM = """
import gc, json, sys
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
import thinwire
from thinwire.moments import watch

WIDTH, LAYERS = 256, 6
dist.init_process_group("gloo", store=dist.FileStore(sys.argv[1], 1), rank=0, world_size=1)

def live():
    '''Bytes of all storages that some tensor in Python holds.'''
    gc.collect()
    tensors = (thing for thing in gc.get_objects() if type(thing) in (torch.Tensor, nn.Parameter))
    return sum({t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}.values())

def taken(rule, steps):
    '''Bytes a parameter that a model has after some steps.'''
    before = live()
    model = nn.Sequential(*(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS)))
    ddp = DistributedDataParallel(model, bucket_cap_mb=0.5, gradient_as_bucket_view=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    if rule is not None:
        chosen = thinwire.parse(rule)
        handle = thinwire.attach(ddp, chosen, optimizer, moments=watch(ddp, rule=chosen) if "vgc" in rule else None)
    for _ in range(steps):
        optimizer.zero_grad()
        ddp(torch.randn(4, WIDTH)).square().mean().backward()
        optimizer.step()
    return (live() - before) / (LAYERS * WIDTH**2)

rules = json.loads(sys.argv[2])
taken("ef21(topk(0.01))", 5)  # what is imported and compiled on the way
gc.collect()
gc.freeze()  # what is there by now is looked at no more: half a second each time
dense = taken(None, 5)
print(json.dumps({"at first": taken("ef21(topk(0.01))", 0) - taken(None, 0)} |
                 {rule: taken(rule, 5) - dense for rule in rules}))
"""


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Measured in a process of its own: other tests leave tensors behind, which the collector takes when it likes."""
    store = tmp_path_factory.mktemp("alone") / "store"
    program = [sys.executable, "-W", "ignore", "-c", PROGRAM, str(Path(store)), json.dumps(list(BYTES))]
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, float] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(("rule", "expected"), BYTES.items())
def test_a_rule_takes_its_state_and_one_copy_to_undo_a_step(rule: str, expected: int, taken: dict[str, float]) -> None:
    assert expected <= taken[rule] <= expected * 1.1 + 0.5


@pytest.mark.parametrize(("name", "vectors"), [("memsgd", 1), ("dgc", 2), ("memadam", 1)])
def test_a_vector_in_bytes_takes_at_most_1_1_a_parameter(name: str, vectors: int, taken: dict[str, float]) -> None:
    """Beside the same rule in full, so that messages, which both hold, are left out; twice, to undo a step."""
    saved = taken[f"{name}(topk(0.01))"] - taken[f"{name}(topk(0.01), memory=int8)"]
    assert saved >= 2 * vectors * (4 - 1.1)


def test_attaching_takes_no_memory_before_the_first_step(taken: dict[str, float]) -> None:
    assert taken["at first"] < 0.5
