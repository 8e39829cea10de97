"""What `import thinwire` offers by name."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

import thinwire
from thinwire.channel import Channel
from thinwire.feedback import Need, Round
from thinwire.ledger import Ledger


def test_moments_are_there_as_the_remedy_of_an_error_writes_them() -> None:
    """In a fresh interpreter: here another test may have imported the module already."""
    program = (
        "import sys, torch, thinwire\n"
        "assert 'thinwire.moments' not in sys.modules\n"
        "print(thinwire.moments.watch(torch.nn.Linear(2, 1)).names)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout == "('weight', 'bias')\n"


def test_other_names_are_refused_as_by_any_module() -> None:
    with pytest.raises(AttributeError, match="module 'thinwire' has no attribute 'momentz'"):
        thinwire.momentz  # noqa: B018


def test_updates_and_their_optimizer_come_with_the_package() -> None:
    """As the docs name them, by `import thinwire` alone."""
    assert issubclass(thinwire.updates.UpdateOptimizer, torch.optim.Optimizer)
    kinds = (thinwire.updates.NewtonSchulz, thinwire.updates.Sign, thinwire.updates.Muon)
    assert [str(kind()) for kind in kinds] == ["newtonschulz()", "sign()", "muon()"]


def test_what_users_annotate_and_build_with_is_exported() -> None:
    assert (thinwire.Need, thinwire.Round, thinwire.Channel, thinwire.Ledger) == (Need, Round, Channel, Ledger)
