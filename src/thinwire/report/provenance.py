"""Provenance: what a result came from, so that it can be repeated or doubted."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from thinwire.version import __version__, source_digest

PACKAGES = ("torch", "numpy", "scikit-learn")


def provenance(command: Sequence[str], device: str = "cpu", experiment: str = "training") -> dict[str, Any]:
    """Experiment, command, versions, commit, the source's digest, machine and time, as plain values."""
    return {
        "experiment": experiment,
        "command": shlex.join(command),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {
            "python": platform.python_version(),
            "thinwire": __version__,
            **{name: version(name) for name in PACKAGES},
        },
        "commit": commit(),
        "source": source_digest(),
        "machine": {
            "platform": platform.platform(),
            "cpus": os.cpu_count(),
            "cpu": cpu_model(),
            "gpu": accelerator(device),
        },
    }


def accelerator(device: str) -> dict[str, str] | None:
    """What the record says of a GPU; None for a CPU."""
    if device != "cuda":
        return None
    return {"name": torch.cuda.get_device_name(), "cuda": str(torch.version.cuda), "float32_products": "TF32"}


def version(package: str) -> str | None:
    """The installed version of a package, which is not imported for it."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def commit() -> str | None:
    """The git commit of thinwire's own source, `+` where files differ from it; None for an installed wheel, or where
    there is no git."""
    source = Path(__file__)
    if _git(source, "ls-files", "--error-unmatch", source.name) is None:
        return None
    head = _git(source, "rev-parse", "HEAD")
    return head and head + ("+" if _git(source, "status", "--porcelain", "--untracked-files=no") else "")


def _git(source: Path, *arguments: str) -> str | None:
    # without optional locks: `status` would write the index anew, and leave its lock behind where the disk is full
    command = ["git", "--no-optional-locks", "-C", str(source.parent), *arguments]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() if answer.returncode == 0 else None


def cpu_model() -> str:
    """The processor's name as the system tells it."""
    if sys.platform == "linux":
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
