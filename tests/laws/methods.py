"""The one list of every method; each law is tested over it. A new method joins here."""

from __future__ import annotations

from thinwire import (
    CLAG,
    EF21,
    EF21BC,
    EF21HB,
    EF21P,
    EF21PAGE,
    EF21PP,
    EF21SGD2M,
    EF21SGDM,
    EF21W,
    EFBV,
    MARINA,
    QSGD,
    VGC,
    Compressor,
    Contractive,
    EControl,
    EF21Plus,
    Feedback,
    HardThreshold,
    Hybrid,
    Identity,
    MemSGD,
    Natural,
    Plain,
    RandK,
    ScaledSign,
    Strom,
    Target,
    ThreePCv2,
    ThreePCv4,
    ThreePCv5,
    TopK,
    Unbias,
    Warmup,
)

COMPRESSORS: list[Compressor] = [
    Identity(),
    TopK(0.1),
    TopK(count=3),
    TopK(Warmup(0.9, 0.05, 5)),
    TopK(0.3, per="bucket"),
    TopK(0.3, values="float32"),
    TopK(0.3, values="bfloat16"),
    TopK(0.3, values="float16"),
    TopK(0.3, values="exponent4"),
    RandK(0.2),
    RandK(count=2),
    RandK(count=0.5),
    RandK(0.3, shared=True),
    RandK(count=0.4, shared=True),
    RandK(0.3, shared=True, values="bfloat16"),
    RandK(Warmup(0.5, 0.1, 3), values="exponent4"),
    HardThreshold(0.5),
    HardThreshold(0.01, values="float16"),
    Strom(0.25),
    ScaledSign(),
    ScaledSign(7),
    QSGD(3, 8),
    QSGD(255, 512),
    Natural(),
    Contractive(QSGD(2, 16)),
    Contractive(Natural()),
    Unbias(RandK(0.2)),
    Unbias(RandK(count=2, shared=True)),
]

CONTRACTIONS = [c for c in COMPRESSORS if c.delta(10_000) >= 0]


def rules(compressor: Compressor) -> list[Feedback]:
    """Every rule over one contraction."""
    return [
        Plain(compressor),
        MemSGD(compressor),
        EF21(compressor),
        EF21(compressor, start="compressed"),
        EF21(compressor, start="zero"),
        EF21Plus(compressor),
        EF21Plus(compressor, start="zero"),
        EF21SGDM(compressor, eta=0.3),
        EF21SGDM(compressor, eta=1.0, start="compressed"),
        EControl(compressor, eta=0.2),
        EControl(compressor, eta=1.0, start="zero"),
    ]


FAMILY: list[Feedback] = [
    rule
    for c in (Identity(), TopK(0.3), RandK(0.3, shared=True), HardThreshold(0.5))
    for rule in (
        EF21SGD2M(c, eta=0.3),
        EF21PAGE(c, 0.4),
        EF21PP(c, 0.5),
        EF21PP(c, 0.5, start="zero"),
        EF21BC(c, RandK(0.4)),
        EF21BC(TopK(0.2), c, start="compressed"),
        EF21HB(c, eta=0.7),
        EF21W(c, (1.0, 2.5, 0.5)),
        EFBV(c, lam=0.6, nu=0.8),
        EFBV(c, lam=0.5, start="compressed"),
        CLAG(c, zeta=1.0),
        CLAG(c, zeta=0.3, start="zero"),
        ThreePCv2(c, Unbias(RandK(0.5))),
        ThreePCv2(c, QSGD(3, 8), start="zero"),
        ThreePCv4(c, TopK(0.2)),
        ThreePCv4(RandK(0.3, shared=True), c, start="compressed"),
        ThreePCv5(c, 0.4),
        EF21P(EF21(c), TopK(0.4)),
        EF21P(EF21PP(TopK(0.2), 0.6), c),
    )
] + [
    MARINA(Identity(), 0.3),
    MARINA(Unbias(RandK(0.2)), 0.3),
    MARINA(QSGD(3, 8), 0.5),
    EFBV(Unbias(RandK(0.2)), lam=0.2),
    EF21P(MARINA(Natural(), 0.2), RandK(0.5, shared=True)),
]
"""The rest of EF21's family, over fewer compressors."""

CRITERIA: list[Feedback] = [
    VGC(),
    VGC(1.0, zeta=1.0, values="full"),
    VGC(Warmup(0.1, 2.0, 4), values="float16"),
    VGC(Target(20), drop_small=True),
    VGC(2.0, positions="word"),
    Hybrid(0.25),
    Hybrid(Warmup(0.01, 0.5, 3), alpha=Target(5.0, start=1.0, gain=0.2), zeta=0.9),
]

METHODS: list[Feedback] = [*(rule for c in CONTRACTIONS for rule in rules(c)), Plain(QSGD(3, 8)), *FAMILY, *CRITERIA]
