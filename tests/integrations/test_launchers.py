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
SCRIPT = ROOT / "examples" / "train_ddp.py"


def result(printed: str) -> list[str]:
    """What the example says at its end: accuracy, bytes, ratios."""
    return re.findall(r"test accuracy .*|\d+ times fewer .*", printed)


@pytest.mark.dist
def test_the_line_for_slurm_starts_the_ranks_that_torchrun_starts(tmp_path: Path) -> None:
    ended_well, printed = run_script(SCRIPT, tmp_path, ranks=2)
    assert ended_well, printed
    line = re.search(r"^srun bash -c '(.*)'$", (ROOT / "docs" / "launching.md").read_text(), re.M)
    assert line is not None
    assert "examples/train_ddp.py" in line[1]

    store = dist.TCPStore("localhost", 0, is_master=True, wait_for_workers=False)  # on any free port
    common = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(store.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    common["PATH"] = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # where `python` is this one
    clean = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    ranks = [
        subprocess.Popen(
            ["bash", "-c", line[1].replace("python examples/train_ddp.py", f"python {SCRIPT}")],
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
    assert len(result(printed)) == 2
    assert result(outputs[0]) == result(printed)
