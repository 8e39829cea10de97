"""Runs of a paper's experiment, gathered by figure and data set."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar


class Done(Protocol):
    """A run whose setting has a `figure` and a `dataset`."""

    @property
    def setting(self) -> Any: ...


Run = TypeVar("Run", bound=Done)


def grouped(outcomes: Iterable[Run]) -> list[tuple[tuple[str, str], list[Run]]]:
    """The runs of each figure and data set, in their order."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for one in outcomes:
        groups.setdefault((one.setting.figure, one.setting.dataset), []).append(one)
    return list(groups.items())
