"""The text form of a value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from thinwire import EF21, QSGD, Contractive, Identity, Natural, RandK, Route, TopK, Warmup
from thinwire.named import Named, show


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.01, "0.01"),
        (3, "3"),
        (True, "True"),
        (None, "None"),
        ("bfloat16", "bfloat16"),
        ("two words", "'two words'"),
        ("True", "'True'"),
        ("None", "'None'"),
        ("", "''"),
        ("0.1", "'0.1'"),
        ({"a.*": TopK(0.5)}, "{'a.*': topk(0.5)}"),
        (Warmup(0.5, 0.1, 3), "warmup(0.5, 0.1, 3)"),
    ],
)
def test_show_writes_what_the_parser_reads(value: object, text: str) -> None:
    assert show(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Identity(), "identity()"),
        (TopK(0.01), "topk(0.01)"),
        (TopK(count=3), "topk(count=3)"),
        (TopK(0.1, values="float16"), "topk(0.1, values=float16)"),
        (RandK(0.1, shared=True), "randk(0.1, shared=True)"),
        (QSGD(4), "qsgd(4)"),
        (QSGD(4, 64), "qsgd(4, 64)"),
        (Contractive(Natural()), "contractive(natural())"),
        (EF21(TopK(0.1), start="zero"), "ef21(topk(0.1), start=zero)"),
        (Route({"*": TopK(0.1)}, min_numel=0), "route({'*': plain(topk(0.1))}, min_numel=0)"),
    ],
)
def test_defaults_are_left_out_and_leading_fields_are_bare(value: Named, text: str) -> None:
    assert str(value) == text


@dataclass(frozen=True)
class Three(Named):
    a: int = 1
    b: int = 2
    c: int = 3
    name: ClassVar[str] = "three"
    positional: ClassVar[int] = 2


def test_after_a_default_every_field_is_named() -> None:
    assert str(Three()) == "three()"
    assert str(Three(5, 6, 7)) == "three(5, 6, c=7)"
    assert str(Three(b=6)) == "three(b=6)"
