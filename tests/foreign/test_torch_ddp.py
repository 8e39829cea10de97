"""A handful of torch's own DDP tests, attached; `python -m tests.foreign.torch_ddp` runs them all."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tests.builds import CUDA_WITHOUT_GPU

SECONDS = 600  # about 10 s on two idle cores; the limit is for a busy machine

pytestmark = [
    pytest.mark.dist,
    pytest.mark.timeout(SECONDS),
    pytest.mark.skipif(CUDA_WITHOUT_GPU, reason="torch's own tests look for a driver, where its build has CUDA"),
]

GROUPS = {
    "joining": (
        2,
        [
            "test_ddp_grad_div_uneven_inputs",
            "test_ddp_join_model_equivalence",
            "test_ddp_python_error_logged",
            "test_ddp_static_graph_nested_types",
            "test_ddp_uneven_input_join_disable",
        ],
    ),
    "training": (
        2,
        [
            "test_DistributedDataParallelCPU",
            "test_accumulate_gradients_no_sync_grad_is_view",
            "test_ddp_control_flow_different_across_ranks",
            "test_ddp_create_graph",
            "test_ddp_ignore_params_arg",
        ],
    ),
    "three ranks": (3, ["test_ddp_shared_grad_acc_unused_params", "test_ddp_uneven_input_exception"]),
}


@pytest.mark.parametrize(("world", "names"), GROUPS.values(), ids=GROUPS)
def test_torchs_own_tests_pass_with_every_model_attached(world: int, names: list[str]) -> None:
    """They run in a process of their own: torch's test classes fork, and set what the whole process shares."""
    _run(world, names)


def _run(world: int, names: list[str]) -> None:
    options = ["--world", str(world), "--seconds", str(SECONDS), "--tracebacks", "--only", f"^({'|'.join(names)})$"]
    command = [sys.executable, "-m", "tests.foreign.torch_ddp", *options]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(f"{len(names)} tests: {len(names)} pass") == 3, done.stdout
