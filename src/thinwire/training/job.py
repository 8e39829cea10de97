"""A job: what the parent process hands to its workers, through one JSON file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thinwire.training.config import RunConfig


@dataclass(frozen=True)
class Job:
    """Configurations that share one launch of workers, and where their record goes."""

    configs: tuple[RunConfig, ...]
    record: Path
    provenance: Mapping[str, Any]
    folder: Path
    """Where workers leave their failures and the launcher their output."""

    def write(self) -> Path:
        """Write the job into its folder, for the workers to read."""
        plain = {
            "configs": [config.asdict() for config in self.configs],
            "record": str(self.record.absolute()),
            "provenance": self.provenance,
        }
        path = self.folder / "job.json"
        path.write_text(json.dumps(plain), encoding="utf-8")
        return path

    @classmethod
    def read(cls, path: Path) -> Job:
        """The job that `write` left at `path`."""
        plain = json.loads(path.read_text(encoding="utf-8"))
        configs = tuple(RunConfig(**config) for config in plain["configs"])
        return cls(configs, Path(plain["record"]), plain["provenance"], path.parent)

    def failure_path(self, rank: int) -> Path:
        """Where a rank tells why it failed."""
        return self.folder / f"failure-{rank}.json"
