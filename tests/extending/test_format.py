"""A message format from outside travels, and its tag is its own."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pytest
from tests.extending.authored import Halved, Halves
from tests.extending.runs import check_every_engine
from tests.laws import test_compressor_laws as laws

from thinwire.authoring import ConfigError, Dense, register
from thinwire.payload import FORMATS


def test_its_tag_names_it() -> None:
    assert FORMATS[Halves.tag] is Halves
    assert register(Halves) is Halves


def test_its_compressor_obeys_the_laws() -> None:
    laws.test_pack_and_unpack_are_inverse(compressor=Halved())
    laws.test_input_is_left_alone_and_equal_keys_give_equal_messages(compressor=Halved())
    laws.test_it_draws_as_it_says(compressor=Halved())


@pytest.mark.dist
def test_simulation_and_processes_agree(tmp_path: Path) -> None:
    check_every_engine("memsgd(halved())", tmp_path)


def test_a_tag_that_is_taken_or_missing_is_refused() -> None:
    with pytest.raises(ConfigError, match="has the tag 2, which is Sparse's"):

        class Taken(Dense):
            tag: ClassVar[int] = 2

    class Tagless(Dense):
        """A format that says no tag of its own."""

    with pytest.raises(ConfigError, match="has no tag of its own"):
        register(Tagless)
