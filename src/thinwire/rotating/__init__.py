"""Checkpoints that survive kills: sets of one part a rank, each whole or not counted."""

from thinwire.rotating.rotating import Rotating as Rotating
from thinwire.rotating.rotating import Skipped as Skipped
