"""Feedback rules: the two halves of each algorithm, one file each."""

from thinwire.feedback.base import Feedback as Feedback
from thinwire.feedback.base import Need as Need
from thinwire.feedback.base import Signal as Signal
from thinwire.feedback.base import Slot as Slot
from thinwire.feedback.base import State as State
from thinwire.feedback.econtrol import EControl as EControl
from thinwire.feedback.ef21 import EF21 as EF21
from thinwire.feedback.ef21plus import EF21Plus as EF21Plus
from thinwire.feedback.ef21sgdm import EF21SGDM as EF21SGDM
from thinwire.feedback.hybrid import Hybrid as Hybrid
from thinwire.feedback.memsgd import MemSGD as MemSGD
from thinwire.feedback.plain import Plain as Plain
from thinwire.feedback.route import Route as Route
from thinwire.feedback.route import Rule as Rule
from thinwire.feedback.route import as_rule as as_rule
from thinwire.feedback.route import rule_of as rule_of
from thinwire.feedback.target import Target as Target
from thinwire.feedback.vgc import VGC as VGC
