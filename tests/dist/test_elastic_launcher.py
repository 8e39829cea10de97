"""torch's elastic launcher: a host is killed, the others start again with what all of them had not sent."""

from __future__ import annotations

import os
import runpy
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.forks import CONTEXT
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

import thinwire
from thinwire.checkpoint import Rotating
from thinwire.engines.ddp.handle import Handle

pytestmark = pytest.mark.dist
SCRIPT = Path(__file__).parents[2] / "examples" / "elastic_torchrun.py"
HOSTS, STEPS, LIMIT = 3, 60, 300.0


def agent(folder: str) -> None:
    """One host: torchrun as a function, in a session of its own so that the host can be killed as a whole."""
    os.setsid()
    descriptor = os.open(f"{folder}/printed-{os.getpid()}", os.O_WRONLY | os.O_CREAT)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    config = LaunchConfig(
        min_nodes=HOSTS - 1,
        max_nodes=HOSTS,
        nproc_per_node=1,
        max_restarts=20,
        monitor_interval=0.1,
        start_method="fork",
        run_id="elastic",
        rdzv_backend="c10d",
        rdzv_endpoint=f"{folder}/rendezvous",
        rdzv_configs={
            "store_type": "file",
            "last_call_timeout": 3,
            "keep_alive_interval": 1,
            "keep_alive_max_attempt": 2,
        },
        local_addr="localhost",
    )
    elastic_launch(config, host)(folder)


def host(folder: str) -> None:
    """The example. With all hosts it stands still after its first checkpoint, until one of them is killed; fewer only
    begin once that has come about. It leaves what it loads."""
    load, save, killed = Handle.load_state_dict, Rotating.save, Path(folder, "killed")
    if int(os.environ["WORLD_SIZE"]) < HOSTS:
        stand_still(killed)

    def noted(handle: Handle, state: Any, **options: Any) -> None:
        load(handle, state, **options)
        mine = handle.state_dict()
        torch.save((state, mine), f"{folder}/loaded-{handle.channel.size}-{handle.channel.rank}")

    def saved(checkpoints: Rotating, step: int, state: Any) -> None:
        save(checkpoints, step, state)
        Path(folder, f"saved-{os.environ['RANK']}").touch()
        stand_still(killed)

    Handle.load_state_dict, Rotating.save = noted, saved  # type: ignore[method-assign, assignment]
    sys.argv = [str(SCRIPT), f"{folder}/checkpoints", str(STEPS)]
    runpy.run_path(str(SCRIPT), run_name="__main__")


def stand_still(until: Path) -> None:
    while not until.exists():
        time.sleep(0.02)


@pytest.mark.exhaustive  # three launchers and a host that is killed: half a minute
def test_who_is_left_starts_again_with_what_all_had_not_sent(tmp_path: Path) -> None:
    agents = [CONTEXT.Process(target=agent, args=(str(tmp_path),)) for _ in range(HOSTS)]
    for each in agents:
        each.start()
    try:
        until(lambda: len(list(tmp_path.glob("saved-*"))) == HOSTS, agents)
        victim = agents.pop()
        os.killpg(victim.pid or 0, signal.SIGKILL)
        (tmp_path / "killed").touch()
        for each in agents:
            each.join(LIMIT)
        assert [each.exitcode for each in agents] == [0, 0], printed(tmp_path)
    finally:
        for each in agents:
            each.kill()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        step, _ = Rotating(tmp_path / "checkpoints").parts() or (0, [])
    assert step == STEPS
    loaded = [torch.load(path, weights_only=True) for path in sorted(tmp_path.glob("loaded-2-*"))]
    assert len(loaded) == 2, printed(tmp_path)
    merged = loaded[0][0]
    assert merged["workers"] == HOSTS
    for name in merged["shapes"]:
        before = torch.stack([merged["slots"][f"error/rank{rank}/{name}"] for rank in range(HOSTS)]).double().mean(0)
        after = torch.stack([own["slots"][f"error/rank{rank}/{name}"] for rank, (_, own) in enumerate(loaded)])
        bound = 4 * torch.finfo(torch.float32).eps * float(before.abs().max())
        assert float((after.double().mean(0) - before).abs().max()) <= bound
        assert float(before.abs().max()) > 0


def until(done: Any, agents: list[Any]) -> None:
    deadline = time.monotonic() + LIMIT
    while not done():
        assert time.monotonic() < deadline
        assert all(each.is_alive() for each in agents)
        time.sleep(0.02)


def printed(folder: Path) -> str:
    return "\n".join(path.read_text()[-3000:] for path in folder.glob("printed-*"))


def test_a_checkpoint_of_fewer_ranks_is_resumed_with_merged_states(tmp_path: Path) -> None:
    """In one process: a set of one rank's part is its own; of another number see `merge_parts`."""
    x = {"x": torch.zeros(4)}
    simulation = thinwire.Simulation(x, "ef21(topk(count=1))", workers=2)
    simulation.exchange([{"x": torch.ones(4)}, {"x": torch.zeros(4)}])
    checkpoints = Rotating(tmp_path)
    checkpoints.save(1, {"model": x, "thinwire": simulation.state_dict()})
    step, saved = checkpoints.resume() or (0, None)
    assert step == 1
    assert saved["thinwire"]["workers"] == 2
