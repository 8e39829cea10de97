"""States of channels as dicts, and folders of checkpoints that survive kills."""

from thinwire.checkpoint.part_set import write_part as write_part
from thinwire.checkpoint.rotating import Rotating as Rotating
from thinwire.checkpoint.rotating import Skipped as Skipped
from thinwire.checkpoint.state import OnResize as OnResize
from thinwire.checkpoint.state import digest as digest
from thinwire.checkpoint.state import load_ as load_
from thinwire.checkpoint.state import load_all_ as load_all_
from thinwire.checkpoint.state import merge_states as merge_states
from thinwire.checkpoint.state import prepared as prepared
from thinwire.checkpoint.state import save as save
