"""The folder that holds a user's data: the one that is given, else the environment's THINWIRE_DATA."""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "THINWIRE_DATA"


def data_folder(given: str | None) -> Path | None:
    """`given`, else the folder of THINWIRE_DATA, else None."""
    folder = given or os.environ.get(VARIABLE)
    return Path(folder) if folder else None
