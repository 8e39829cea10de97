"""Every Python block of the README and the docs runs, and every public name is documented."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from tests.forks import run_script

import thinwire
from thinwire.papers import read_sections

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}:{place}")
    for page in PAGES
    for place, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(), re.DOTALL))
]
JOINS = re.compile(r"init_process_group\(|= Accelerator\(")


def quiet(printed: str) -> bool:
    return not re.search(r"\w*Warning: .*", printed)


@pytest.mark.dist
@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_runs(block: str, tmp_path: Path) -> None:
    """A block that joins a process group (Accelerate does so by itself) runs on two ranks, another one alone."""
    for package in re.findall(r"^(?:from|import) (pytorch_lightning|accelerate|transformers|torchft)\b", block, re.M):
        pytest.importorskip(package, exc_type=ModuleNotFoundError)
    script = tmp_path / "block.py"
    script.write_text(block)
    ended_well, printed = run_script(script, tmp_path, ranks=2 if JOINS.search(block) else 1)
    assert ended_well, printed
    assert quiet(printed), printed


@pytest.mark.dist
def test_the_example_trains(tmp_path: Path) -> None:
    ended_well, printed = run_script(ROOT / "examples" / "train_ddp.py", tmp_path, ranks=2)
    assert ended_well, printed
    assert quiet(printed), printed
    assert re.search(r"memsgd\(topk\(0.01\)\): test accuracy \d\d\.\d%", printed)


def test_the_readme_has_its_two_commands() -> None:
    readme = (ROOT / "README.md").read_text()
    assert "make demo" in readme
    assert "make test" in readme


def test_the_readme_shows_its_demo_as_the_record_has_it() -> None:
    """Rows of its tables, and the sentences below them."""
    readme = (ROOT / "README.md").read_text()
    words = " ".join(readme.split())
    sections, _ = read_sections([ROOT / "docs" / "records" / "demo.jsonl"])
    for section in sections:
        for row in section.table[1:]:
            assert re.search(r" +".join(map(re.escape, row)), readme), row
        for sentence in section.sentences:
            assert " ".join(sentence.split()) in words


def public_names() -> list[str]:
    return [name for name in thinwire.__all__ if not name.startswith("_")]


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_is_documented(name: str) -> None:
    """The docs speak of it, the API reference shows it, and its docstring has an example (which the doctests run)."""
    assert any(re.search(rf"\b{name}\b", page.read_text()) for page in PAGES)
    assert any(f"::: thinwire.{name}\n" in page.read_text() for page in (ROOT / "docs" / "api").glob("*.md"))
    assert ">>> " in (inspect.getdoc(getattr(thinwire, name)) or "")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pictures_and_pages_that_are_named_are_there(page: Path) -> None:
    for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target
