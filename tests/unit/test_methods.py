"""The list of methods holds every compressor and every rule, and every suite draws from it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from tests.methods import COMPRESSOR_ENTRIES, CONTRACTIONS, RULE_ENTRIES, CompressorEntry, RuleEntry

from thinwire import Contractive, Unbias, compressors, feedback, parse
from thinwire.engines.needs import BEYOND_ONE_BACKWARD

METHODS_PAGE = (Path(__file__).parents[2] / "docs" / "methods.md").read_text()
each_compressor = pytest.mark.parametrize("entry", COMPRESSOR_ENTRIES, ids=lambda entry: entry.kind.name)
each_rule = pytest.mark.parametrize("entry", RULE_ENTRIES, ids=lambda entry: entry.kind.name)


def test_every_compressor_and_every_rule_stands_in_it_once() -> None:
    assert Counter(entry.kind for entry in COMPRESSOR_ENTRIES) == Counter(compressors.ALL)
    assert Counter(entry.kind for entry in RULE_ENTRIES) == Counter(feedback.ALL)


@each_compressor
def test_every_suite_tries_every_compressor(entry: CompressorEntry) -> None:
    assert entry.laws
    within_another = entry.kind in (Contractive, Unbias)  # their messages are those of what they hold
    assert within_another or (entry.wire and entry.fuzz)
    assert all(type(one) is entry.kind for one in (*entry.laws, *entry.wire, *entry.fuzz))
    assert re.search(rf"\b({entry.kind.name}|{entry.kind.__name__})\b", METHODS_PAGE)


@each_rule
def test_every_suite_tries_every_rule(entry: RuleEntry) -> None:
    forms = [*entry.alone, *(form for compressor in entry.over for form in entry.forms(compressor))]
    assert forms
    assert entry.golden
    assert all(type(one) is entry.kind for one in (*forms, *entry.fuzz, *map(parse, entry.golden)))
    under_ddp = not any(form.needs & BEYOND_ONE_BACKWARD.keys() for form in forms)
    assert under_ddp == bool(entry.ddp or entry.over is CONTRACTIONS)
    assert re.search(rf"\b({entry.kind.name}|{entry.kind.__name__})\b", METHODS_PAGE)
