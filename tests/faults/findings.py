"""What a trial of one fault has shown."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field

from thinwire.errors import ThinwireError


@dataclass
class Finding:
    """What one rank saw."""

    errors: list[tuple[str, str]] = field(default_factory=list)
    """Type and text of each error that it raised."""
    lost: str = ""
    """Empty, or what is not as it would have been without the fault."""

    def check(self, holds: bool, what: str) -> None:
        """Note a loss unless something holds."""
        self.lost = self.lost or ("" if holds else what)

    def hear(self, act: Callable[[], object]) -> None:
        """Do what should raise; another error than ours, or none, is a loss."""
        try:
            act()
        except Exception as error:
            self.errors.append((type(error).__name__, str(error)))
            self.check(isinstance(error, ThinwireError), f"an error that is not ours: {error!r}")
        else:
            self.check(False, "the fault went unnoticed")


@dataclass(frozen=True)
class Outcome:
    """What a trial came to, over all survivors."""

    kind: str
    errors: tuple[str, ...]
    """The type of error on each survivor."""
    seconds: float
    """Until all survivors had ended or raised."""
    lost: tuple[str, ...] = ()
    unclear: tuple[str, ...] = ()
    hung: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    """What the errors said."""

    @property
    def is_right(self) -> bool:
        return not (self.lost or self.unclear or self.hung)


def unclear(findings: list[Finding], words: str) -> tuple[str, ...]:
    """Texts that lack what this kind of error must say."""
    return tuple(text for finding in findings for _, text in finding.errors if not re.search(words, text, re.DOTALL))
