"""The house keeps to the limits that CONTRIBUTING.md states, and names that are used twice have a reason."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.arch.house import SOURCE, File, House, figures, main, median, ninetieth, table

ROOT = Path(__file__).parents[2]
SECTION = "## The house in numbers"

KERNEL = "one operation, on each kind of device"
PAPER = "each paper has the same few files"
MEASURED = "a benchmark is named for the thing that it measures"
THEORY = "a rule, and the theorems about it"
MODULES = {
    "base": "the abstract class of its package",
    "checks": "of numbers for all, and of a linear model's arguments",
    "claims": PAPER,
    "ef21": THEORY,
    "exponents": KERNEL,
    "lockfree": f"an alias for code that imports the engine's old place; {MEASURED}",
    "plan": "how moments are taken, and what linear's threads do: both are plans",
    "precondition": KERNEL,
    "quantise": KERNEL,
    "runs": PAPER,
    "sections": f"{PAPER}, and so have training and the laboratory",
    "select_above": KERNEL,
    "select_largest": KERNEL,
    "select_random": KERNEL,
    "settings": PAPER,
    "simulation": MEASURED,
    "state": "a checkpoint's, and the linear engine's",
    "train": "the command, and what it does",
    "variance": KERNEL,
    "wire": f"{KERNEL}; {MEASURED}",
}
"""Module names that are used twice, each with the reason."""
CLASSES = {
    "Arrival": "of a bucket, and of a layer's moments",
    "Outer": "steps, and products: two packages that never meet",
    "Plan": "how moments are taken, and how a GPU correlates: two packages that never meet",
    "Slot": "of a rule's state, and of a layer's moments",
}
"""Public class names that are used twice, each with the reason."""


@pytest.fixture(scope="module")
def house() -> House:
    return House.read(SOURCE)


def limit(name: str) -> int:
    """As CONTRIBUTING.md states it."""
    section = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").partition(SECTION)[2].partition("\n## ")[0]
    return int(dict(re.findall(r"^\| ([^|]+?) \| ([\d,]+) \|$", section, re.M))[name].replace(",", ""))


def test_there_are_not_too_many_files(house: House) -> None:
    assert len(house.files) <= limit("files"), house.packages


def test_no_file_is_too_long(house: House) -> None:
    assert not {file.path: file.length for file in house.files if file.length > limit("code lines of a file")}


def test_no_function_is_too_long(house: House) -> None:
    most = limit("code lines of a function")
    assert not {f"{file.path}:{f.name}": f.length for file in house.files for f in file.functions if f.length > most}


def test_functions_outside_kernels_are_short(house: House) -> None:
    lengths = house.lengths(kernels=False)
    assert median(lengths) <= limit("median function outside kernels")
    assert ninetieth(lengths) <= limit("90 % of functions outside kernels")


def test_a_module_name_stands_for_one_thing(house: House) -> None:
    assert not {name: places for name, places in house.stems_twice.items() if name not in MODULES}


def test_a_class_name_stands_for_one_thing(house: House) -> None:
    assert not {name: places for name, places in house.classes_twice.items() if name not in CLASSES}


def test_code_lines_are_those_with_code(tmp_path: Path) -> None:
    source = '''"""A module."""

import numba

class Thing:
    """A thing."""

    field: int
    """Its field."""

    def method(
        self,
    ) -> str:
        """Says so."""
        # why
        text = """three
        lines
        long"""

        return text


def outer():
    def inner():
        return 1
    return inner
'''
    (tmp_path / "thing.py").write_text(source)
    file = File.read(tmp_path / "thing.py", tmp_path)
    assert file.length == 3 + 3 + 4 + 4
    assert {f.name: f.length for f in file.functions} == {"method": 4, "outer": 3, "inner": 1}
    assert file.classes == ("Thing",)
    assert file.kernel
    assert file.package == "(root)"


def test_two_trees_stand_side_by_side(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for tree, names in (("before", ("a/x.py", "b/x.py", "ops/cpu/y.py")), ("after", ("a/x.py",))):
        for name in names:
            path = tmp_path / tree / name
            path.parent.mkdir(parents=True)
            path.write_text("class Same:\n    pass\n")
    main([str(tmp_path / "before"), str(tmp_path / "after")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["files", "3", "1"]
    assert lines[1].split() == ["code", "lines", "6", "2"]
    before = House.read(tmp_path / "before")
    assert before.stems_twice == {"x": ["a/x.py", "b/x.py"]}
    assert before.classes_twice == {"Same": ["a/x.py", "b/x.py", "ops/cpu/y.py"]}
    assert [file.kernel for file in before.files] == [False, False, True]
    assert any(line.split() == ["files", "of", "b", "1", "0"] for line in table([figures(before), {}]))
