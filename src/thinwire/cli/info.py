"""`thinwire info`: what is installed here, and the names that a method's text may use."""

from __future__ import annotations

import os
import platform

import torch
from rich.table import Table
from rich.text import Text

from thinwire import spec
from thinwire.cli import options
from thinwire.cli.console import console
from thinwire.ops.backends import BACKENDS, Backend
from thinwire.report.provenance import commit, cpu_model, version
from thinwire.training.config import TORCH_METHODS
from thinwire.training.device import process_groups
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


def info(plugin: options.Plugin = None) -> None:
    """Show versions, devices, optional packages, and the names of methods and tasks.

    **Example**

      thinwire info
    """
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for name, value in _inventory().items():
        table.add_row(Text(name, style="bold"), Text(value))
    console().print(table)


def _inventory() -> dict[str, str]:
    """Line by line."""
    return {
        "thinwire": f"{__version__} ({commit() or f'source {source_digest()[:12]}'})",
        "python": f"{platform.python_version()} on {platform.platform()}",
        "torch": f"{torch.__version__}, {torch.get_num_threads()} threads",
        "processor": f"{cpu_model()}, {os.cpu_count()} CPUs",
        "devices": ", ".join(["cpu", *map(torch.cuda.get_device_name, range(torch.cuda.device_count()))]),
        "process groups": ", ".join(process_groups()),
        **{name: version(name) or f"missing: pip install 'thinwire[{extra}]'" for name, extra in EXTRAS.items()},
        "kernels": "; ".join(f"{device}: {_kernels(backend)}" for device, backend in BACKENDS.items()),
        "tasks": ", ".join(TASKS),
        "compressors": ", ".join(sorted(spec.COMPRESSORS)),
        "rules": ", ".join(sorted(spec.RULES)),
        "torch's own": "; ".join(f"{method.name} ({method.about})" for method in TORCH_METHODS.values()),
    }


def _kernels(backend: Backend) -> str:
    return backend.name if backend.installed else f"plain torch (for {backend.name}: {backend.remedy})"
