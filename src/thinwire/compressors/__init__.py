"""Compressors: frozen, stateless maps from a vector to a message, one file each."""

from thinwire.compressors.arctopk import ArcTopK as ArcTopK
from thinwire.compressors.base import Compressor as Compressor
from thinwire.compressors.base import Draws as Draws
from thinwire.compressors.base import Unbiased as Unbiased
from thinwire.compressors.chunktopk import ChunkTopK as ChunkTopK
from thinwire.compressors.identity import Identity as Identity
from thinwire.compressors.natural import Natural as Natural
from thinwire.compressors.qsgd import QSGD as QSGD
from thinwire.compressors.randk import RandK as RandK
from thinwire.compressors.rescaled import Contractive as Contractive
from thinwire.compressors.rescaled import Unbias as Unbias
from thinwire.compressors.sign import ScaledSign as ScaledSign
from thinwire.compressors.threshold import HardThreshold as HardThreshold
from thinwire.compressors.threshold import Strom as Strom
from thinwire.compressors.topk import TopK as TopK

ALL: tuple[type[Compressor], ...] = (
    Identity,
    TopK,
    ChunkTopK,
    RandK,
    ArcTopK,
    HardThreshold,
    Strom,
    ScaledSign,
    QSGD,
    Natural,
    Contractive,
    Unbias,
)
"""Every compressor of the package; names, laws and tests are drawn from this list."""
