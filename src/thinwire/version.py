"""Which source this is: its version (written here alone; the package's metadata is made from it) and its digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

__version__ = "0.1.0"
PACKAGE = Path(__file__).parent
"""The folder of thinwire's own source."""


def source_digest(package: Path = PACKAGE) -> str:
    """SHA-256 over the names and contents of a package's Python files in their order.

    It ties a record to its code where a commit does not: in a tree without git, or one that differs from its commit.
    """
    digest = hashlib.sha256()
    for path in sorted(package.rglob("*.py"), key=lambda path: path.relative_to(package).as_posix()):
        name, content = path.relative_to(package).as_posix().encode(), path.read_bytes()
        digest.update(b"%d %s %d " % (len(name), name, len(content)) + content)
    return digest.hexdigest()
