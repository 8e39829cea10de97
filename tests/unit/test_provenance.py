"""What a record says of the code that made it, also where the code is neither installed nor under git."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import thinwire
from thinwire.report.provenance import commit, provenance
from thinwire.version import PACKAGE, __version__, source_digest

ASK = "import json; from thinwire.report.provenance import provenance; print(json.dumps(provenance(['x'])))"


def copy_of(package: Path, folder: Path) -> Path:
    return Path(shutil.copytree(package, folder / "thinwire", ignore=shutil.ignore_patterns("__pycache__")))


def test_a_record_names_version_and_source() -> None:
    found = provenance(["thinwire", "x y"])
    assert found["command"] == "thinwire 'x y'"
    assert found["versions"]["thinwire"] == thinwire.__version__ == __version__
    assert found["source"] == source_digest()
    assert found["commit"] == commit()


def test_asking_for_the_commit_does_not_write_to_the_repository(tmp_path: Path) -> None:
    """Not even the index, whose times are old here, so that a plain `git status` would write it anew."""
    copy = copy_of(PACKAGE, tmp_path)
    author = ["-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "thinwire"], [*author, "commit", "-q", "-m", "all"]):
        subprocess.run(["git", "-C", str(tmp_path), *words], check=True, capture_output=True)
    os.utime(copy / "version.py", (1, 1))
    index = tmp_path / ".git" / "index"
    before = index.read_bytes()
    alone = os.environ | {"PYTHONPATH": str(tmp_path)}
    answer = subprocess.run([sys.executable, "-c", ASK], env=alone, cwd=tmp_path, capture_output=True, check=True)
    assert len(json.loads(answer.stdout)["commit"]) == 40
    assert index.read_bytes() == before


def test_a_tree_without_git_that_is_not_installed_is_known_by_its_files(tmp_path: Path) -> None:
    copy = copy_of(PACKAGE, tmp_path)
    file = copy / "version.py"
    file.write_text(file.read_text().replace(f'"{__version__}"', '"9.8.7"'))
    alone = os.environ | {"PYTHONPATH": str(tmp_path), "GIT_CEILING_DIRECTORIES": str(tmp_path.parent)}
    answer = subprocess.run([sys.executable, "-c", ASK], env=alone, cwd=tmp_path, capture_output=True, check=True)
    found = json.loads(answer.stdout)
    assert (found["versions"]["thinwire"], found["commit"]) == ("9.8.7", None)
    assert found["source"] == source_digest(copy) != source_digest()


def test_the_digest_is_that_of_names_and_contents(tmp_path: Path) -> None:
    copy = copy_of(PACKAGE, tmp_path)
    assert source_digest(copy) == source_digest()
    (copy / "notes.txt").write_text("no code")
    assert source_digest(copy) == source_digest()
    (copy / "ledger.py").rename(copy / "book.py")
    renamed = source_digest(copy)
    (copy / "book.py").write_text("")
    assert len({source_digest(), renamed, source_digest(copy)}) == 3
