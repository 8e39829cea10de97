"""A compressor from outside obeys the laws, runs in every engine, and is known by its name."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from tests.extending.authored import BlockTop
from tests.extending.runs import check_every_engine
from tests.laws import test_compressor_laws as laws

import thinwire
from thinwire import EF21, Key, Layout, MemSGD, parse, spec, theory
from thinwire.authoring import Compressor, ConfigError, register

ADDED: list[Compressor] = [BlockTop(), BlockTop(1), BlockTop(3)]
each_added = pytest.mark.parametrize("compressor", ADDED, ids=str)


@each_added
@pytest.mark.parametrize("rule", [EF21, MemSGD])
def test_parse_knows_it(compressor: Compressor, rule: type[EF21]) -> None:
    assert parse(str(rule(compressor))) == rule(compressor)
    assert parse(repr(rule(compressor))) == rule(compressor)


@each_added
def test_the_laws_hold(compressor: Compressor) -> None:
    laws.test_pack_and_unpack_are_inverse(compressor=compressor)
    laws.test_input_is_left_alone_and_equal_keys_give_equal_messages(compressor=compressor)
    laws.test_contraction_with_the_claimed_delta(compressor=compressor)
    laws.test_it_draws_as_it_says(compressor=compressor)


def test_it_keeps_the_largest_of_each_block() -> None:
    x = torch.tensor([1.0, -3.0, 0.5, 3.5, 2.0])
    kept = BlockTop(2)(x, Layout.of([("x", 0, (5,))]), Key())
    assert kept.positions.tolist() == [1, 3, 4]


@pytest.mark.dist
def test_simulation_and_processes_agree(tmp_path: Path) -> None:
    check_every_engine("ef21(blocktop(4))", tmp_path)


def test_it_has_the_theory_of_what_it_declares() -> None:
    assert theory.is_deterministic(BlockTop())


# ------------------------------------------------------------------------------------------------------ what is refused


def test_to_register_twice_is_harmless() -> None:
    assert register(BlockTop) is BlockTop
    assert thinwire.register is register


def refused(kind: object, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        register(kind)  # type: ignore[type-var]


def test_what_cannot_be_named_is_refused() -> None:
    refused(BlockTop(), "takes a class of a compressor, a rule or a payload")
    refused(int, "takes a class of a compressor, a rule or a payload")
    refused(Compressor, "is abstract: write its __call__, delta")
    body = {"__call__": BlockTop.__call__, "delta": BlockTop.delta}
    refused(type("Nameless", (Compressor,), dict(body)), r"needs a name of its own.*'nameless'; got None")
    refused(type("Spaced", (Compressor,), {**body, "name": "two words"}), "needs a name of its own")
    refused(type("Bare", (Compressor,), {**body, "name": "bare"}), "must be a frozen dataclass")
    frozen = dataclass(frozen=True)
    refused(frozen(type("Other", (Compressor,), {**body, "name": "topk"})), "'topk' is that of thinwire.compressors")
    refused(frozen(type("TopK", (Compressor,), {**body, "name": "mine"})), "'TopK' is that of thinwire.compressors")
    assert "mine" not in spec.NAMES


def test_the_file_passes_mypy_strict() -> None:
    pytest.importorskip("mypy")
    file = Path(__file__).with_name("authored.py")
    command = [sys.executable, "-m", "mypy", "--strict", str(file)]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
