"""The inventory: versions, devices, optional packages and names, in words."""

from __future__ import annotations

import os
import platform

import torch

from thinwire import spec
from thinwire.ops.backends import BACKENDS, Backend
from thinwire.training.peers import PEERS
from thinwire.training.provenance import commit, cpu_model, version
from thinwire.training.tasks import TASKS
from thinwire.version import __version__, source_digest

EXTRAS = {
    "scikit-learn": "tasks",
    "jinja2": "report",
    "numba": "fast",
    "zstandard": "bench",
    "pyroaring": "bench",
}
"""Optional packages and the extra that brings them; looked up by their metadata, never imported."""


def inventory() -> dict[str, str]:
    """What `thinwire info` shows, line by line."""
    return {
        "thinwire": f"{__version__} ({commit() or f'source {source_digest()[:12]}'})",
        "python": f"{platform.python_version()} on {platform.platform()}",
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads",
        "processor": f"{cpu_model()}, {os.cpu_count()} CPUs",
        "devices": ", ".join(["cpu", *_gpus()]),
        "process groups": ", ".join(_process_groups()),
        **{name: version(name) or f"missing: pip install 'thinwire[{extra}]'" for name, extra in EXTRAS.items()},
        "kernels": "; ".join(f"{device}: {_kernels(backend)}" for device, backend in BACKENDS.items()),
        "tasks": ", ".join(TASKS),
        "compressors": ", ".join(sorted(spec.COMPRESSORS)),
        "rules": ", ".join(sorted(spec.RULES)),
        "torch's own": "; ".join(f"{peer.name} ({peer.about})" for peer in PEERS.values()),
    }


def _kernels(backend: Backend) -> str:
    return backend.name if backend.installed else f"plain torch (for {backend.name}: {backend.remedy})"


def _gpus() -> list[str]:
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]


def _process_groups() -> list[str]:
    backends = {
        "gloo": torch.distributed.is_gloo_available,
        "nccl": torch.distributed.is_nccl_available,
        "mpi": torch.distributed.is_mpi_available,
    }
    return [name for name, there in backends.items() if there()] if torch.distributed.is_available() else ["none"]
