"""Many workers simulated by one call: their vectors lie side by side in one buffer, as pieces of one layout.

A rule and its compressor take part by saying that they treat each piece by itself (`piecewise`), and may say where they
look before a gradient is taken (`looks_at`). Joint keys, stacks of messages and demands on a problem stay in here.
"""

from thinwire.engines.crowd.at_once import FEW as FEW
from thinwire.engines.crowd.at_once import AtOnce as AtOnce
from thinwire.engines.crowd.at_once import Partly as Partly
from thinwire.engines.crowd.at_once import Pointwise as Pointwise
from thinwire.engines.crowd.at_once import Together as Together
from thinwire.engines.crowd.crowd import Crowd as Crowd
from thinwire.engines.crowd.crowd import Seen as Seen
from thinwire.engines.crowd.crowd import refusal as refusal
from thinwire.engines.crowd.joint import JointKey as JointKey
from thinwire.engines.crowd.joint import joint_index as joint_index
from thinwire.engines.crowd.joint import joint_layout as joint_layout
from thinwire.engines.crowd.stack import Stack as Stack
