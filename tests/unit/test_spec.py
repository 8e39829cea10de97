"""The text of a method, read back; and how a mistake is shown."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from thinwire import EF21, QSGD, MemSGD, Plain, Route, TopK, Warmup, parse
from thinwire.errors import ConfigError, SpecError
from thinwire.spec import COMPRESSORS, NAMES, RULES, SPELLINGS, rule_from


def mistake(text: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        parse(text)
    lines = str(caught.value).splitlines()
    assert lines[-1].strip() == "^"
    assert lines[-1].index("^") == caught.value.column + 2
    return caught.value


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("ef21(topk(0.01))", EF21(TopK(0.01))),
        ("  ef21( topk( ratio = 0.01 ) , start = 'zero' ) ", EF21(TopK(0.01), start="zero")),
        ("topk(count=3)", Plain(TopK(count=3))),
        ("plain(qsgd(15))", Plain(QSGD(15))),
        ("memsgd(topk(warmup(0.25, 0.01, 100)))", MemSGD(TopK(Warmup(0.25, 0.01, 100)))),
        (
            "route({'e*': identity(), '*': topk(0.1)}, min_numel=0)",
            Route({"e*": NAMES["identity"](), "*": TopK(0.1)}, 0),
        ),
        ("ef21(\n  topk(0.01)\n)", EF21(TopK(0.01))),
        ("EF21(TopK(0.01))", EF21(TopK(0.01))),
        ("MemSGD(topk(count=3))", MemSGD(TopK(count=3))),
        ("memsgd(thinwire.TopK(thinwire.Warmup(0.25, 0.01, 100)))", MemSGD(TopK(Warmup(0.25, 0.01, 100)))),
        ("Route({'*': TopK(ratio=0.1, count=None)}, min_numel=0)", Route({"*": TopK(0.1)}, 0)),
    ],
)
def test_a_text_names_a_rule(text: str, rule: object) -> None:
    assert parse(text) == rule


@pytest.mark.parametrize(
    ("text", "under", "problem"),
    [
        ("bogus(0.1)", "bogus", "unknown name 'bogus'; known: "),
        ("ef21(topq(0.01))", "topq", "unknown name 'topq'; did you mean topk? known: "),
        ("route({'*': ef21(topq(0.01))})", "topq", "unknown name 'topq'; did you mean topk?"),
        ("MEMSGD(topk(0.01))", "MEMSGD", "did you mean memsgd?"),
        ("mem_sgd(topk(0.01))", "mem_sgd", "did you mean memsgd?"),
        ("ef21(HardTreshold(0.01))", "HardTreshold", "did you mean threshold?"),
        ("ef21_sgdm(topk(0.01))", "ef21_sgdm", "did you mean ef21sgdm?"),
        ("torch.MemSGD(topk(0.01))", "torch", "expected name(...), a number or a word"),
        ("thinwire.attach(topk(0.01))", "thinwire", "unknown name 'attach'; known"),
        ("MemSGD(TopK)", "TopK", "TopK needs its brackets: TopK(...)"),
        ("MemSGD()", "MemSGD", "memsgd missing 1 required positional argument: 'compressor'"),
        ("ef21(topk(2))", "topk", "topk ratio must lie in (0, 1], got 2: write 1 % as topk(0.01)"),
        ("ef21(topk(0))", "topk", "got 0"),
        ("memsgd(topk(count=0))", "topk", "topk count must be at least 1, got 0"),
        ("memsgd(topk(-0.1))", "topk", "got -0.1"),
        ("ef21(topk(1e999))", "topk", "got inf"),
        ("ef21(topk(0.1, values=int3))", "topk", "unknown value format 'int3'"),
        ("randk(0.1, values=int3)", "randk", "unknown value format 'int3'; known: full"),
        ("ef21(topk(0.1), start=ones)", "ef21", "start must be one of gradient, compressed, zero, got 'ones'"),
        ("ef21(topk)", "topk", "topk needs its brackets: topk(...)"),
        ("ef21", "ef21", "ef21 needs its brackets"),
        ("ef21()", "ef21", "ef21 missing 1 required positional argument: 'compressor'"),
        ("ef21(topk(0.1), alpha=2)", "ef21", "unexpected keyword argument 'alpha'"),
        ("ef21(topk(0.1), zero, 3, 4)", "ef21", "positional arguments"),
        ("memsgd(ef21(topk(0.1)))", "memsgd", "memsgd takes a compressor such as topk(0.01), got"),
        ("memsgd(0.1)", "memsgd", "memsgd takes a compressor"),
        ("contractive(topk(0.1))", "contractive", "unbiased compressor"),
        ("route({})", "route", "route takes a table"),
        ("route({'*': 5})", "route", "expected a rule such as"),
        ("0.5", "0.5", "expected a rule such as ef21(topk(0.01)) or a compressor, got 0.5"),
        ("word", "word", "expected a rule such as"),
        ("warmup(0.5, 0.1, 3)", "warmup", "expected a rule such as"),
        ("ef21(1 + 1)", "1 +", "expected name(...), a number or a word"),
        ("ef21(topk(0.1).ratio)", "topk", "expected name(...), a number or a word"),
        ("ef21([topk(0.1)])", "[", "expected name(...), a number or a word"),
        ("ef21(lambda: 0)", "lambda", "expected name(...), a number or a word"),
        ("__import__('os')", "__import__", "unknown name '__import__'"),
        ("ef21(topk(None))", "topk", "topk takes either a ratio or count=, got ratio=None and count=None"),
        ("ef21(topk(...))", "...", "expected name(...), a number or a word"),
        ("ef21(topk(2j))", "2j", "expected name(...), a number or a word"),
    ],
)
def test_a_mistake_is_shown_under_its_place(text: str, under: str, problem: str) -> None:
    error = mistake(text)
    assert text[error.column :].startswith(under)
    assert problem in error.problem
    assert isinstance(error, ConfigError)


def test_an_unknown_name_is_told_all_there_are() -> None:
    with pytest.raises(SpecError, match=f"known: {', '.join(sorted(NAMES))}"):
        parse("bogus(0.1)")


@pytest.mark.parametrize(
    ("text", "column"),
    [("", 0), ("   ", 0), ("ef21(", 4), ("ef21(topk(0.1)", 4), ("ef21(topk(0.1)))", 15), ("ef21(topk(0.1 0.2))", 10)],
)
def test_what_is_no_expression_is_shown_where_reading_stopped(text: str, column: int) -> None:
    error = mistake(text)
    assert error.problem == "this is not a method's text"
    assert error.column == column


@pytest.mark.parametrize(
    ("text", "under"),
    [
        ("topk(abc)", "topk"),
        ("topk(identity())", "topk"),
        ("ef21(topk('0.1'))", "topk"),
        ("qsgd(4.5)", "qsgd"),
        ("sign(2.5)", "sign"),
        ("topk(warmup(a, b, c))", "warmup"),
        ("ef21sgdm(topk(0.1), eta=big)", "ef21sgdm"),
    ],
)
def test_a_word_where_a_number_belongs_is_explained_in_the_methods_terms(text: str, under: str) -> None:
    error = mistake(text)
    assert text[error.column :].startswith(under)
    assert "not supported between" not in error.problem
    assert under in error.problem


@pytest.mark.parametrize(
    "text",
    [
        "topk(0.1, **more)",
        "route({'*': identity(), **more})",
        "topk(ratio=0.1, ratio=0.2)",
        "route({'*': identity(), '*': topk(0.1)})",
        "route({{}: identity()})",
        "route({1: identity()})",
        "route({topk(0.1): identity()})",
    ],
)
def test_nothing_in_a_text_is_silently_dropped(text: str) -> None:
    mistake(text)


def test_the_caret_counts_characters_not_bytes() -> None:
    text = "route({'größe.*': topq(0.1)})"
    assert text[mistake(text).column :].startswith("topq")


def test_the_caret_stands_under_its_line() -> None:
    lines = str(mistake("ef21(\n  topk(2))")).splitlines()
    assert lines[-2].index("topk") == lines[-1].index("^")


@pytest.mark.parametrize("text", [None, 5, b"ef21(topk(0.1))", TopK(0.1)], ids=repr)
def test_only_text_can_be_read(text: object) -> None:
    with pytest.raises(ConfigError):
        parse(text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value", [MemSGD(TopK(0.01)), "memsgd(topk(0.01))", "MemSGD(TopK(0.01))", "thinwire.MemSGD(topk(ratio=0.01))"]
)
def test_a_rule_is_given_as_itself_or_as_text(value: object) -> None:
    assert rule_from(value) == MemSGD(TopK(0.01))


def test_a_compressor_is_given_as_itself_or_as_text() -> None:
    assert rule_from(TopK(0.01)) == rule_from("topk(0.01)") == rule_from("TopK(0.01)") == Plain(TopK(0.01))


@pytest.mark.parametrize("value", [None, 5, b"ef21(topk(0.1))", EF21, Warmup(0.5, 0.1, 3)], ids=repr)
def test_what_is_no_rule_is_refused(value: object) -> None:
    with pytest.raises(ConfigError, match="expected a rule such as"):
        rule_from(value)


words = st.sampled_from(
    [
        *NAMES,
        *SPELLINGS,
        "None",
        ".",
        "(",
        ")",
        ",",
        "=",
        "0.1",
        "'*'",
        "{",
        "}",
        ":",
        "-",
        "3",
        " ",
        "start",
        "zero",
        "**",
        "count",
    ]
)


@settings(max_examples=300)
@given(st.lists(words, max_size=14).map("".join) | st.text(max_size=20))
@example("-" * 20_000 + "1")
@example("(" * 20_000)
@example("ef21(" * 50 + ")" * 50)
@example("topk(0.1)\x00")
@example("'" + "\\ud800" + "'")
def test_any_text_is_a_rule_or_a_spec_error(text: str) -> None:
    try:
        rule = parse(text)
    except SpecError:
        return
    assert parse(str(rule)) == rule


def test_every_method_has_one_name() -> None:
    assert not COMPRESSORS.keys() & RULES.keys()
    assert all(name == kind.name for name, kind in NAMES.items())
