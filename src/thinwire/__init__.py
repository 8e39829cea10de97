"""thinwire: data-parallel training that sends few bytes and remembers what it did not send.

All public names stand once, in the imports below, which type checkers and documentation read. At run time each is
imported when it is first used: `import thinwire` alone takes a hundredth of the time that torch takes.
"""

import typing

from thinwire.version import __version__ as __version__

if typing.TYPE_CHECKING:
    from thinwire import authoring as authoring
    from thinwire import moments as moments
    from thinwire.advice import Advice as Advice
    from thinwire.advice import advise as advise
    from thinwire.channel import Channel as Channel
    from thinwire.checkpoint import merge_states as merge_states
    from thinwire.compressors import QSGD as QSGD
    from thinwire.compressors import ArcTopK as ArcTopK
    from thinwire.compressors import ChunkTopK as ChunkTopK
    from thinwire.compressors import Compressor as Compressor
    from thinwire.compressors import Contractive as Contractive
    from thinwire.compressors import HardThreshold as HardThreshold
    from thinwire.compressors import Identity as Identity
    from thinwire.compressors import Natural as Natural
    from thinwire.compressors import RandK as RandK
    from thinwire.compressors import ScaledSign as ScaledSign
    from thinwire.compressors import Strom as Strom
    from thinwire.compressors import TopK as TopK
    from thinwire.compressors import Unbias as Unbias
    from thinwire.engines.ddp import Handle as Handle
    from thinwire.engines.ddp import attach as attach
    from thinwire.engines.fsdp import attach_fsdp as attach_fsdp
    from thinwire.engines.outer import Outer as Outer
    from thinwire.engines.outer import OuterHandle as OuterHandle
    from thinwire.engines.outer import OuterSimulation as OuterSimulation
    from thinwire.engines.outer import attach_outer as attach_outer
    from thinwire.engines.outer import sparse_loco as sparse_loco
    from thinwire.engines.simulate import simulate as simulate
    from thinwire.engines.simulation import Simulation as Simulation
    from thinwire.feedback import CLAG as CLAG
    from thinwire.feedback import DGC as DGC
    from thinwire.feedback import EF21 as EF21
    from thinwire.feedback import EF21BC as EF21BC
    from thinwire.feedback import EF21HB as EF21HB
    from thinwire.feedback import EF21P as EF21P
    from thinwire.feedback import EF21PAGE as EF21PAGE
    from thinwire.feedback import EF21PP as EF21PP
    from thinwire.feedback import EF21SGD2M as EF21SGD2M
    from thinwire.feedback import EF21SGDM as EF21SGDM
    from thinwire.feedback import EF21W as EF21W
    from thinwire.feedback import EFBV as EFBV
    from thinwire.feedback import MARINA as MARINA
    from thinwire.feedback import VGC as VGC
    from thinwire.feedback import Auto as Auto
    from thinwire.feedback import EControl as EControl
    from thinwire.feedback import EF21Plus as EF21Plus
    from thinwire.feedback import Feedback as Feedback
    from thinwire.feedback import Hybrid as Hybrid
    from thinwire.feedback import MemAdam as MemAdam
    from thinwire.feedback import MemSGD as MemSGD
    from thinwire.feedback import Need as Need
    from thinwire.feedback import Plain as Plain
    from thinwire.feedback import Round as Round
    from thinwire.feedback import Route as Route
    from thinwire.feedback import Target as Target
    from thinwire.feedback import ThreePCv2 as ThreePCv2
    from thinwire.feedback import ThreePCv4 as ThreePCv4
    from thinwire.feedback import ThreePCv5 as ThreePCv5
    from thinwire.layout import Layout as Layout
    from thinwire.ledger import Ledger as Ledger
    from thinwire.ops import Key as Key
    from thinwire.spec import parse as parse
    from thinwire.spec import register as register
    from thinwire.warmup import Warmup as Warmup
else:
    import ast
    import importlib
    import importlib.util

    _PLACES = {
        alias.name: node.module
        for node in ast.walk(ast.parse(__loader__.get_source(__name__)))
        if isinstance(node, ast.ImportFrom) and node.module != __name__
        for alias in node.names
    }
    __all__ = sorted(_PLACES)

    def __getattr__(name: str) -> object:
        """A public name, or a module of the package."""
        if name in _PLACES:
            return globals().setdefault(name, getattr(importlib.import_module(_PLACES[name]), name))
        if not name.startswith("_") and importlib.util.find_spec(f"{__name__}.{name}") is not None:
            return importlib.import_module(f"{__name__}.{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        return sorted({*globals(), *_PLACES})
