"""The same oracle under atheris, which keeps whatever message reaches a new line of the decoders.

    pip install atheris
    THINWIRE_BACKEND=reference python -m tests.fuzz.guided --seconds 120 [--seed 0]

The decoders in plain torch (THINWIRE_BACKEND=reference) show atheris more of themselves than compiled kernels do.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import Any

import atheris
import torch

with atheris.instrument_imports(include=["thinwire"]):  # nothing of thinwire may be imported before
    from tests.fuzz.corpus import Link, Sample, links, samples
    from tests.fuzz.oracle import ACCEPTED, examine_message, examine_payload, resealed

HEAD = 2
"""Bytes before the message that choose what it is read as."""


def search(seconds: int, seed: int) -> None:
    """Search for that long; atheris ends the process, with the offending message on a finding."""
    torch.set_num_threads(1)
    sources: list[Sample | Link] = [*samples(), *links()]
    with tempfile.TemporaryDirectory() as folder:
        for i, source in enumerate(sources):
            (Path(folder) / str(i)).write_bytes(i.to_bytes(HEAD, "little") + source.message)
        limits = [f"-max_total_time={seconds}", f"-seed={seed + 1}", "-max_len=1500", "-print_final_stats=1"]
        atheris.Setup([sys.argv[0], *limits, folder], lambda data: _examine(data, sources))
        atheris.Fuzz()


def _examine(data: bytes, sources: list[Any]) -> None:
    if len(data) < HEAD:
        return
    number = int.from_bytes(data[:HEAD], "little")
    source, message = sources[number % len(sources)], data[HEAD:]
    if isinstance(source, Sample):
        examine_payload(message, source, twice=True)
        return
    examine_message(resealed(message, source.suspect), source, late=True)
    if message != source.message and examine_message(message, source) == ACCEPTED:
        # a search that finds a checksum by itself is no damage: it has made another valid message
        assert resealed(message, source.suspect) == message


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    search(options.seconds, options.seed)


if __name__ == "__main__":
    main()
