"""Feedback rules: the two halves of each algorithm, one file each."""

from thinwire.feedback.auto import Auto as Auto
from thinwire.feedback.base import Feedback as Feedback
from thinwire.feedback.base import Need as Need
from thinwire.feedback.base import Round as Round
from thinwire.feedback.base import Signal as Signal
from thinwire.feedback.base import Slot as Slot
from thinwire.feedback.base import State as State
from thinwire.feedback.dgc import DGC as DGC
from thinwire.feedback.ef21 import EF21 as EF21
from thinwire.feedback.ef21plus import EF21Plus as EF21Plus
from thinwire.feedback.ef21sgdm import EF21SGDM as EF21SGDM
from thinwire.feedback.family.clag import CLAG as CLAG
from thinwire.feedback.family.econtrol import EControl as EControl
from thinwire.feedback.family.ef21bc import EF21BC as EF21BC
from thinwire.feedback.family.ef21hb import EF21HB as EF21HB
from thinwire.feedback.family.ef21p import EF21P as EF21P
from thinwire.feedback.family.ef21page import EF21PAGE as EF21PAGE
from thinwire.feedback.family.ef21pp import EF21PP as EF21PP
from thinwire.feedback.family.ef21sgd2m import EF21SGD2M as EF21SGD2M
from thinwire.feedback.family.ef21w import EF21W as EF21W
from thinwire.feedback.family.efbv import EFBV as EFBV
from thinwire.feedback.family.marina import MARINA as MARINA
from thinwire.feedback.family.threepc import ThreePCv2 as ThreePCv2
from thinwire.feedback.family.threepc import ThreePCv4 as ThreePCv4
from thinwire.feedback.family.threepc import ThreePCv5 as ThreePCv5
from thinwire.feedback.hybrid import Hybrid as Hybrid
from thinwire.feedback.memadam import MemAdam as MemAdam
from thinwire.feedback.memsgd import MemSGD as MemSGD
from thinwire.feedback.plain import Plain as Plain
from thinwire.feedback.route import Route as Route
from thinwire.feedback.route import Rule as Rule
from thinwire.feedback.route import as_rule as as_rule
from thinwire.feedback.route import rule_of as rule_of
from thinwire.feedback.variance_criterion import Target as Target
from thinwire.feedback.vgc import VGC as VGC

ALL: tuple[type[Feedback], ...] = (
    Plain,
    MemSGD,
    DGC,
    MemAdam,
    EF21,
    EF21Plus,
    EF21SGDM,
    EF21SGD2M,
    EF21PAGE,
    EF21PP,
    EF21BC,
    EF21HB,
    EF21W,
    EF21P,
    EFBV,
    CLAG,
    ThreePCv2,
    ThreePCv4,
    ThreePCv5,
    MARINA,
    EControl,
    VGC,
    Hybrid,
)
"""Every rule of the package; names, laws and tests are drawn from this list."""
