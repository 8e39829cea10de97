"""The text of a method, read back: `ef21(topk(0.01))` <-> EF21(TopK(0.01))."""

from __future__ import annotations

import ast
from dataclasses import is_dataclass
from difflib import get_close_matches
from inspect import isabstract
from keyword import iskeyword
from typing import Any, TypeVar

from thinwire import compressors, feedback
from thinwire.compressors import Compressor
from thinwire.errors import ConfigError, SpecError, UnknownName
from thinwire.feedback import Auto, Feedback, Route, Rule, Target, as_rule
from thinwire.named import Named
from thinwire.payload import FORMATS, Payload
from thinwire.warmup import Warmup

COMPRESSORS: dict[str, type[Named]] = {kind.name: kind for kind in compressors.ALL}
RULES: dict[str, type[Named]] = {kind.name: kind for kind in feedback.ALL} | {Route.name: Route}
PARTS: tuple[type[Named], ...] = (Warmup, Target, Auto)
NAMES: dict[str, type[Named]] = {**COMPRESSORS, **RULES, **{kind.name: kind for kind in PARTS}}
"""Every name that the text form knows."""
SPELLINGS: dict[str, type[Named]] = {**NAMES, **{kind.__name__: kind for kind in NAMES.values()}}
"""What `parse` reads as a name: that of the text form, or the class as Python writes it."""
REMEDY = " (one of your own: register its class, or give its file by --plugin)"
Kind = TypeVar("Kind", bound=type)


def register(kind: Kind) -> Kind:
    """Make a compressor, a rule or a message format of one's own known, as if it came with the package.

    A class decorator, too: `@register` above `@dataclass(frozen=True)`. `parse`, the command line, records and
    checkpoints then know the class by its `name` and by its Python name. A format is known by its `tag` as soon as its
    class is there; to register it says so, and checks it. To register a class twice, or one that was defined anew in
    the same place (as in a notebook), is harmless.

    >>> from dataclasses import dataclass
    >>> from thinwire import TopK, parse
    >>> from thinwire.authoring import Compressor
    >>> @register
    ... @dataclass(frozen=True)
    ... class Largest(Compressor):
    ...     name = "largest"
    ...     def __call__(self, x, layout, key):
    ...         return TopK(count=1)(x, layout, key)
    ...     def delta(self, numel):
    ...         return 1 / numel
    >>> parse("memsgd(largest())")
    MemSGD(compressor=Largest(), decay=1.0, memory='full')
    """
    if not (isinstance(kind, type) and issubclass(kind, (Compressor, Feedback, Payload))):
        raise ConfigError(f"register takes a class of a compressor, a rule or a payload, got {kind!r}")
    if isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise ConfigError(f"{kind.__name__} is abstract: write its {missing}")
    if issubclass(kind, Payload):
        _check_format(kind)
    else:
        _check_named(kind)
        (COMPRESSORS if issubclass(kind, Compressor) else RULES)[kind.name] = kind
        NAMES[kind.name] = SPELLINGS[kind.name] = SPELLINGS[kind.__name__] = kind
    return kind


def _check_format(kind: type[Payload]) -> None:
    """Refuse a format without a tag: messages could not name it."""
    if not any(known is kind or _place(known) == _place(kind) for known in FORMATS.values()):
        free = next(tag for tag in range(255, -1, -1) if tag not in FORMATS)
        raise ConfigError(f"{kind.__name__} has no tag of its own: give it one byte, as tag: ClassVar[int] = {free}")


def _check_named(kind: type[Named]) -> None:
    """Refuse a class that no text could name, or whose name is another's."""
    name = vars(kind).get("name")
    if not (isinstance(name, str) and name.isidentifier() and not iskeyword(name)):
        example = kind.__name__.lower()
        raise ConfigError(
            f"{kind.__name__} needs a name of its own, as name: ClassVar[str] = {example!r}; got {name!r}"
        )
    if not (is_dataclass(kind) and "__dataclass_params__" in vars(kind) and kind.__dataclass_params__.frozen):
        raise ConfigError(f"{kind.__name__} must be a frozen dataclass: write @dataclass(frozen=True) below @register")
    for word in (name, kind.__name__):
        other = SPELLINGS.get(word, kind)
        if _place(other) != _place(kind):
            raise ConfigError(f"{kind.__name__}: the name {word!r} is that of {other.__module__}.{other.__qualname__}")


def _place(kind: type) -> tuple[str, str]:
    """Where a class is defined."""
    return kind.__module__, kind.__qualname__


def parse(text: str) -> Rule:
    """The rule that a text names; a mistake is a `SpecError` with a caret under it.

    >>> parse("memsgd(topk(0.01, values=bfloat16))")
    MemSGD(compressor=TopK(ratio=0.01, count=None, values='bfloat16', per='parameter'), decay=1.0, memory='full')

    Python's spelling is read too: the classes' own names, with or without `thinwire.`, mixed with the short ones.

    >>> parse("thinwire.MemSGD(TopK(0.01))") == parse("memsgd(topk(0.01))")
    True
    """
    value, text = _read(text)
    if isinstance(value, Auto):
        problem = "auto chooses by the wire between ranks: only attach, thinwire train and thinwire lab take it"
        raise SpecError(text, 0, problem)
    return value


def _read(text: str) -> tuple[Rule | Auto, str]:
    """What a text names, and the text in one line."""
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
        return (value if isinstance(value, Auto) else as_rule(value)), text
    except ConfigError as error:
        raise SpecError(text, _column(tree, text), str(error)) from None


def method_from(value: object) -> Rule | Auto:
    """What a user attaches: a rule as `rule_from` takes it, or `auto`, which has one chosen.

    >>> str(method_from("auto")), str(method_from("Auto(MemSGD(TopK(0.01)))")), str(method_from("topk(0.01)"))
    ('auto', 'auto(memsgd(topk(0.01)))', 'plain(topk(0.01))')
    """
    if isinstance(value, str):
        return _read(value)[0]
    return value if isinstance(value, Auto) else as_rule(value)


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
                raise UnknownName(text, _column(node, text), _unknown(name))
            return _call(SPELLINGS[name], args, options, text, _column(node, text))
        case ast.Name(id=name) if SPELLINGS.get(name) is Auto:
            return Auto()
        case ast.Name(id=name) if name in SPELLINGS:
            raise SpecError(text, _column(node, text), f"{name} needs its brackets: {name}(...)")
        case ast.Name(id=word):
            return word
    raise SpecError(text, _column(node, text), "expected name(...), a number or a word")


def _unknown(name: str) -> str:
    """What to say of a name that is not known: the one it resembles most, whatever its case, and all there are."""
    known = {spelling.lower(): kind.name for spelling, kind in SPELLINGS.items()}
    meant = "".join(f"did you mean {known[match]}? " for match in get_close_matches(name.lower(), known, n=1))
    return f"unknown name {name!r}; {meant}known: {', '.join(sorted(NAMES))}{REMEDY}"


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
