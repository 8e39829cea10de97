"""The format of a payload that stands within another."""

from __future__ import annotations

from thinwire.payload.base import Payload
from thinwire.payload.reader import Reader


def inner_format(reader: Reader, tag: int) -> type[Payload]:
    """The format that a tag names; a format that holds payloads itself may not stand within another."""
    from thinwire.payload import format_of_tag  # the table of formats names those that ask

    inner = format_of_tag(tag)
    reader.require(not inner.holds, "a message holds format {} within another", tag)
    return inner
