"""The text of a method, read back: `ef21(topk(0.01))` <-> EF21(TopK(0.01))."""

from __future__ import annotations

import ast
from difflib import get_close_matches
from typing import Any

from thinwire import compressors, feedback
from thinwire.errors import ConfigError, SpecError
from thinwire.feedback import Route, Rule, Target, as_rule
from thinwire.named import Named
from thinwire.warmup import Warmup

COMPRESSORS: dict[str, type[Named]] = {kind.name: kind for kind in compressors.ALL}
RULES: dict[str, type[Named]] = {kind.name: kind for kind in feedback.ALL} | {Route.name: Route}
NAMES: dict[str, type[Named]] = {**COMPRESSORS, **RULES, Warmup.name: Warmup, Target.name: Target}
"""Every name that the text form knows."""
SPELLINGS: dict[str, type[Named]] = {**NAMES, **{kind.__name__: kind for kind in NAMES.values()}}
"""What `parse` reads as a name: that of the text form, or the class as Python writes it."""


def parse(text: str) -> Rule:
    """The rule that a text names; a mistake is a `SpecError` with a caret under it.

    >>> parse("memsgd(topk(0.01, values=bfloat16))")
    MemSGD(compressor=TopK(ratio=0.01, count=None, values='bfloat16', per='parameter'))

    Python's spelling is read too: the classes' own names, with or without `thinwire.`, mixed with the short ones.

    >>> parse("thinwire.MemSGD(TopK(0.01))") == parse("memsgd(topk(0.01))")
    True
    """
    if not isinstance(text, str):
        raise ConfigError(f"expected the text of a method such as 'ef21(topk(0.01))', got {text!r}")
    text = " ".join(text.strip().splitlines())  # one line, so that a column is a place
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        place = getattr(error, "offset", None) or 1
        raise SpecError(text, place - 1, "this is not a method's text") from None
    value = _build(tree, text)
    try:
        return as_rule(value)
    except ConfigError as error:
        raise SpecError(text, _column(tree, text), str(error)) from None


def rule_from(value: object) -> Rule:
    """The rule that a user gives: a rule, a route, a bare compressor (as `plain(compressor)`), or the text of one.

    >>> from thinwire import TopK
    >>> str(rule_from("EF21(TopK(0.01))")), str(rule_from(TopK(0.01)))
    ('ef21(topk(0.01))', 'plain(topk(0.01))')
    """
    return parse(value) if isinstance(value, str) else as_rule(value)


def _column(node: ast.expr | ast.keyword, text: str) -> int:
    """Where a node starts, in characters: ast counts bytes."""
    return len(text.encode()[: node.col_offset].decode())


def _build(node: ast.expr, text: str) -> Any:
    match node:
        case ast.Constant(value=bool() | int() | float() | str() | None as constant):
            return constant
        case ast.UnaryOp(op=ast.USub(), operand=ast.Constant(value=int() | float() as number)):
            return -number
        case ast.Tuple(elts=parts):
            return tuple(_build(part, text) for part in parts)
        case ast.Dict(keys=keys, values=values):
            return _table(keys, values, text, node)
        case ast.Call(
            func=ast.Name(id=name) | ast.Attribute(value=ast.Name(id="thinwire"), attr=name),
            args=args,
            keywords=options,
        ):
            if name not in SPELLINGS:
                raise SpecError(text, _column(node, text), _unknown(name))
            return _call(SPELLINGS[name], args, options, text, _column(node, text))
        case ast.Name(id=name) if name in SPELLINGS:
            raise SpecError(text, _column(node, text), f"{name} needs its brackets: {name}(...)")
        case ast.Name(id=word):
            return word
    raise SpecError(text, _column(node, text), "expected name(...), a number or a word")


def _unknown(name: str) -> str:
    """What to say of a name that is not known: the one it resembles most, whatever its case, and all there are."""
    known = {spelling.lower(): kind.name for spelling, kind in SPELLINGS.items()}
    meant = "".join(f"did you mean {known[match]}? " for match in get_close_matches(name.lower(), known, n=1))
    return f"unknown name {name!r}; {meant}known: {', '.join(sorted(NAMES))}"


def _table(keys: list[ast.expr | None], values: list[ast.expr], text: str, node: ast.expr) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for key, value in zip(keys, values, strict=True):
        place = _column(key or node, text)
        if not (isinstance(key, ast.Constant) and isinstance(key.value, str)):
            raise SpecError(text, place, "a table has texts such as 'embed.*' for keys")
        if key.value in table:
            raise SpecError(text, place, f"{key.value!r} stands twice in the table")
        table[key.value] = _build(value, text)
    return table


def _call(kind: type[Named], args: list[ast.expr], options: list[ast.keyword], text: str, column: int) -> Any:
    values = [_build(argument, text) for argument in args]
    named: dict[str, Any] = {}
    for option in options:
        if option.arg is None or option.arg in named:
            raise SpecError(text, _column(option, text), f"{kind.name} takes each option once, as name=value")
        named[option.arg] = _build(option.value, text)
    try:
        return kind(*values, **named)
    except ConfigError as error:
        raise SpecError(text, column, str(error)) from None
    except TypeError as error:
        problem = str(error).replace(f"{kind.__name__}.__init__()", kind.name)
        raise SpecError(text, column, problem) from None
