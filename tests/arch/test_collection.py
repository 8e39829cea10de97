"""Every test file is found: pytest passes over folders of certain names without a word, `dist` among them."""

from __future__ import annotations

from fnmatch import fnmatch
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("folder", sorted({path.parent for path in TESTS.rglob("test_*.py")}), ids=lambda p: p.name)
def test_no_folder_of_tests_is_passed_over(folder: Path, pytestconfig: pytest.Config) -> None:
    patterns = pytestconfig.getini("norecursedirs")
    assert not [p for p in patterns for part in folder.relative_to(TESTS).parts if fnmatch(part, p)]
