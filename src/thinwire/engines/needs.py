"""What a rule needs of its engine, checked before the first step."""

from __future__ import annotations

from thinwire.channel import Channel
from thinwire.errors import AttachError
from thinwire.feedback import Need


def check_need(channel: Channel, need: Need, given: bool, remedy: str) -> None:
    """Refuse a rule that needs what is not given."""
    if need in channel.needs and not given:
        raise AttachError(f"{channel.rule} needs {need.value}: {remedy}")
