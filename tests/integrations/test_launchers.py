"""One script, unchanged, under the variables of torch's launcher and under Slurm's, by the line that the docs give."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed as dist
from tests.forks import run_script

ROOT = Path(__file__).parents[2]
SCRIPT = """
import torch
import torch.distributed as dist
import thinwire

dist.init_process_group("gloo")
torch.manual_seed(0)
ddp = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(50, 2))
optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
handle = thinwire.attach(ddp, "memsgd(topk(0.1))", optimizer)
torch.manual_seed(dist.get_rank())
for _ in range(5):
    optimizer.zero_grad()
    ddp(torch.randn(8, 50)).square().mean().backward()
    optimizer.step()
print("rank", dist.get_rank(), [p.double().norm().item() for p in ddp.parameters()], handle.ledger.summary())
dist.destroy_process_group()
"""


def results(printed: str) -> set[str]:
    """What each rank says at its end."""
    return set(re.findall(r"rank \d \[.*", printed))


@pytest.mark.dist
def test_the_line_for_slurm_starts_the_ranks_that_torchrun_starts(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended_well, printed = run_script(tmp_path / "script.py", tmp_path, ranks=2)
    assert ended_well, printed
    lines = re.findall(r"^srun bash -c '(.*)'$", (ROOT / "docs" / "launching.md").read_text(), re.M)
    example, script = lines
    assert example.replace("examples/train_ddp.py", "script.py") == script

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # on any free port
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    common["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where `python` is this one
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    ranks = [
        subprocess.Popen(
            ["bash", "-c", script],
            env=clean | common | {"SLURM_PROCID": str(rank), "SLURM_NTASKS": "2", "SLURM_LOCALID": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=tmp_path,
            text=True,
        )
        for rank in range(2)
    ]
    outputs = [rank.communicate()[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert len(results(printed)) == 2
    assert results("\n".join(outputs)) == results(printed)
