"""The one list of methods: every compressor and every rule, with the forms of it that each suite tries.

A new compressor or rule joins by one entry here; `tests/unit/test_methods.py` says so if it is missing. Laws, golden
trajectories, payload tests, the fuzz corpus and the runs of real processes all draw from it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from thinwire import (
    CLAG,
    DGC,
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
    ArcTopK,
    ChunkTopK,
    Compressor,
    Contractive,
    EControl,
    EF21Plus,
    Feedback,
    HardThreshold,
    Hybrid,
    Identity,
    MemAdam,
    MemSGD,
    Natural,
    Plain,
    RandK,
    Route,
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

VALUES = ("full", "float32", "bfloat16", "float16", "power4", "exponent4", "bins2")
COUNTED = VALUES[:5]
"""Those that write every number they are given."""


@dataclass(frozen=True)
class CompressorEntry:
    """One compressor, as each suite tries it."""

    kind: type[Compressor]
    laws: Sequence[Compressor]
    wire: Sequence[Compressor] = ()
    """Messages that are packed and unpacked; none where they are those of the compressor within."""
    fuzz: Sequence[Compressor] = ()
    """Messages that are damaged."""
    ddp: Sequence[str] = ()
    """Forms that real processes send, under every rule that takes any contraction."""


COMPRESSOR_ENTRIES = (
    CompressorEntry(Identity, laws=[Identity()], wire=[Identity()], fuzz=[Identity()]),
    CompressorEntry(
        TopK,
        laws=[
            TopK(0.1),
            TopK(count=3),
            TopK(Warmup(0.9, 0.05, 5)),
            TopK(0.3, per="bucket"),
            *(TopK(0.3, values=name) for name in VALUES[1:]),
        ],
        wire=[
            *(TopK(0.4, values=name) for name in VALUES),
            TopK(0.4, per="bucket"),
            TopK(count=1),
            TopK(count=2, per="bucket"),
            TopK(count=2, per="bucket", values="float16"),
            TopK(1.0),
        ],
        fuzz=[TopK(share, values=name) for share in (0.5, 0.2, 0.03) for name in VALUES],  # bitmap, gaps, Elias-Fano
        ddp=["topk(0.1)"],
    ),
    CompressorEntry(
        ChunkTopK,
        laws=[ChunkTopK(0.1, chunk=8), ChunkTopK(0.3, chunk=5, values="bins2"), ChunkTopK(Warmup(0.9, 0.05, 5))],
        wire=[ChunkTopK(0.4, chunk=3), ChunkTopK(0.4, chunk=3, values="bins2")],
        fuzz=[ChunkTopK(0.1, chunk=16, values="bins2")],
    ),
    CompressorEntry(
        RandK,
        laws=[
            RandK(0.2),
            RandK(count=2),
            RandK(count=0.5),
            RandK(0.3, shared=True),
            RandK(count=0.4, shared=True),
            RandK(0.3, shared=True, values="bfloat16"),
            RandK(Warmup(0.5, 0.1, 3), values="exponent4"),
            RandK(0.3, shared=True, values="power4"),
        ],
        wire=[
            RandK(0.3),
            RandK(count=0.5),
            RandK(0.3, shared=True),
            RandK(0.3, shared=True, values="float16"),
            RandK(0.3, shared=True, values="power4"),
            RandK(count=0.5, shared=True),
        ],
        fuzz=[RandK(0.3, shared=True, values=name) for name in COUNTED],
        ddp=["randk(0.1)", "randk(0.1, shared=True)"],
    ),
    CompressorEntry(
        ArcTopK,
        laws=[
            ArcTopK(0.3, columns=3, directions=1),
            ArcTopK(0.5, columns=4, directions=2),
            ArcTopK(Warmup(0.9, 0.05, 5), columns=2, directions=1),
        ],
        wire=[ArcTopK(0.4, columns=3, directions=1), ArcTopK(0.05, columns=2, directions=1), ArcTopK(1.0, columns=6)],
        fuzz=[ArcTopK(ratio, columns=4, directions=2) for ratio in (0.5, 0.2, 0.03)],  # bitmap, gaps, Elias-Fano
        ddp=["arctopk(0.3, columns=8, directions=2)"],
    ),
    CompressorEntry(
        HardThreshold,
        laws=[HardThreshold(0.5), HardThreshold(0.01, values="float16")],
        wire=[HardThreshold(0.5), HardThreshold(1e9)],
        fuzz=[HardThreshold(9.0)],
    ),
    CompressorEntry(
        Strom, laws=[Strom(0.25)], wire=[Strom(0.5), Strom(1e9)], fuzz=[Strom(tau) for tau in (0.5, 1.5, 9.0)]
    ),
    CompressorEntry(
        ScaledSign,
        laws=[ScaledSign(), ScaledSign(7)],
        wire=[ScaledSign(), ScaledSign(4)],
        fuzz=[ScaledSign(), ScaledSign(4)],
        ddp=["sign()"],
    ),
    CompressorEntry(
        QSGD,
        laws=[QSGD(3, 8), QSGD(255, 512)],
        wire=[QSGD(1), QSGD(15, 4), QSGD(65535, 7)],
        fuzz=[QSGD(1), QSGD(5, 4), QSGD(65535, 7)],
    ),
    CompressorEntry(Natural, laws=[Natural()], wire=[Natural()], fuzz=[Natural()]),
    CompressorEntry(
        Contractive, laws=[Contractive(QSGD(2, 16)), Contractive(Natural())], ddp=["contractive(qsgd(4, 64))"]
    ),
    CompressorEntry(Unbias, laws=[Unbias(RandK(0.2)), Unbias(RandK(count=2, shared=True))]),
)
COMPRESSORS = [compressor for entry in COMPRESSOR_ENTRIES for compressor in entry.laws]
CONTRACTIONS = [compressor for compressor in COMPRESSORS if compressor.delta(10_000) >= 0]
FEW = [Identity(), TopK(0.3), RandK(0.3, shared=True), HardThreshold(0.5)]
"""The compressors of rules that are tried over fewer of them."""


@dataclass(frozen=True)
class RuleEntry:
    """One rule, as each suite tries it."""

    kind: type[Feedback]
    golden: Sequence[str]
    """Trajectories on file."""
    laws: Callable[[Compressor], Sequence[Feedback]] = lambda compressor: ()
    """Its forms over one compressor."""
    over: Sequence[Compressor] = ()
    """The compressors that the laws take it over."""
    alone: Sequence[Feedback] = ()
    """Further forms for the laws, or all of a rule that takes no compressor."""
    ddp: Sequence[str] = ()
    """Forms that real processes train with; of one over CONTRACTIONS there are those with each compressor as well."""
    states: Sequence[str] = ()
    """Forms whose state real processes save, resize, refuse to poison, and keep on a GPU."""
    fuzz: Sequence[Feedback] = ()
    """Forms whose messages are damaged."""

    def forms(self, compressor: Compressor) -> Sequence[Feedback]:
        """Its forms over a compressor; none over one that asks workers to agree, where the rule does not."""
        return self.laws(compressor) if self.kind.agrees or not compressor.agrees else ()


RULE_ENTRIES = (
    RuleEntry(
        Plain,
        golden=["plain(identity())", "plain(qsgd(15, 8))", "plain(natural())"],
        laws=lambda c: [Plain(c)],
        over=CONTRACTIONS,
        alone=[Plain(QSGD(3, 8))],
        fuzz=[Plain(QSGD(4, 3)), Plain(Natural()), Plain(Identity())],
    ),
    RuleEntry(
        MemSGD,
        golden=[
            "memsgd(topk(0.1))",
            "memsgd(topk(warmup(0.5, 0.05, 10)))",
            "memsgd(topk(0.2, per=bucket))",
            "memsgd(topk(0.2, values=bfloat16))",
            "memsgd(topk(0.2, values=float16))",
            "memsgd(topk(0.2, values=exponent4))",
            "memsgd(topk(0.2, values=power4))",
            "memsgd(topk(0.2, values=bins2))",
            "memsgd(chunktopk(0.25, chunk=8, values=bins2))",
            "memsgd(randk(0.2))",
            "memsgd(randk(0.2, shared=True))",
            "memsgd(randk(count=0.5))",
            "memsgd(arctopk(0.3, columns=3))",
            "memsgd(threshold(1.0))",
            "memsgd(strom(1.0))",
            "memsgd(sign(8))",
            "memsgd(contractive(qsgd(3, 16)))",
            "memsgd(topk(0.1), decay=0.75)",
            "memsgd(topk(0.1), memory=int8)",
        ],
        laws=lambda c: [MemSGD(c)],
        over=CONTRACTIONS,
        alone=[
            MemSGD(TopK(0.1), memory="int8"),
            MemSGD(TopK(0.1), decay=0.75),
            MemSGD(RandK(0.3, shared=True, values="bfloat16"), decay=0.95),
        ],
        ddp=["memsgd(topk(0.1), decay=0.9)", "memsgd(topk(0.1), memory=int8)"],
        states=[
            "memsgd(topk(0.1))",
            "memsgd(topk(0.1), memory=int8)",
            "memsgd(randk(0.1), decay=0.9)",
            "memsgd(arctopk(0.3, columns=8), decay=0.9)",
            "memsgd(strom(0.02))",
        ],
        fuzz=[
            *(MemSGD(TopK(share, values=name)) for share in (0.5, 0.2, 0.03) for name in VALUES),
            MemSGD(RandK(0.3, shared=True, values="float16")),
            MemSGD(Strom(0.5)),
            MemSGD(ScaledSign()),
        ],
    ),
    RuleEntry(
        DGC,
        golden=[
            "dgc(topk(0.1), momentum=0.5)",
            "dgc(topk(warmup(0.5, 0.1, 10)), momentum=0.5, nesterov=True, masking=False, clip=2.0, decay=0.75)",
            "dgc(topk(0.1), momentum=0.5, memory=int8)",
        ],
        laws=lambda c: [DGC(c), DGC(c, momentum=0.5, nesterov=True, masking=False, clip=0.7, decay=0.9)],
        over=FEW,
        alone=[DGC(ScaledSign(), masking=True), DGC(TopK(0.1), memory="int8")],
        ddp=[
            "dgc(topk(0.1))",
            "dgc(topk(0.1), memory=int8)",
            "dgc(randk(0.1, shared=True), momentum=0.5, nesterov=True, clip=0.1, decay=0.9)",
        ],
        states=["dgc(topk(0.1), clip=0.5)", "dgc(topk(0.1), memory=int8)"],
        fuzz=[DGC(TopK(0.2, values="float16"))],
    ),
    RuleEntry(
        MemAdam,
        golden=[
            "memadam(topk(0.1), beta2=0.9)",
            "memadam(topk(0.1, values=exponent4), clip=0.5, refresh=3, decay=0.75)",
            "memadam(topk(0.1), beta2=0.9, memory=int8)",
        ],
        laws=lambda c: [MemAdam(c), MemAdam(c, beta1=0.0, beta2=0.9, clip=0.7, refresh=3, decay=0.9)],
        over=FEW,
        alone=[MemAdam(TopK(0.1), memory="int8")],
        ddp=[
            "memadam(topk(0.1, values=exponent4))",
            "memadam(topk(0.1), memory=int8)",
            "memadam(randk(0.1, shared=True), refresh=2)",
        ],
        states=["memadam(topk(0.1), refresh=3)", "memadam(topk(0.1), memory=int8)"],
        fuzz=[MemAdam(TopK(0.2, values="float16")), MemAdam(TopK(0.2, values="exponent4"))],
    ),
    RuleEntry(
        EF21,
        golden=[
            "ef21(topk(0.1))",
            "ef21(topk(0.1), start=compressed)",
            "ef21(topk(0.1), start=zero)",
            "ef21(randk(0.2))",
            "ef21(sign())",
        ],
        laws=lambda c: [EF21(c), EF21(c, start="compressed"), EF21(c, start="zero")],
        over=CONTRACTIONS,
        states=["ef21(topk(0.1))"],
        fuzz=[EF21(TopK(0.1)), EF21(TopK(0.1), start="zero")],
    ),
    RuleEntry(
        EF21Plus,
        golden=["ef21plus(topk(0.1))"],
        laws=lambda c: [EF21Plus(c), EF21Plus(c, start="zero")],
        over=CONTRACTIONS,
        states=["ef21plus(topk(0.1))", "ef21plus(sign())"],
        fuzz=[EF21Plus(TopK(0.1))],
    ),
    RuleEntry(
        EF21SGDM,
        golden=["ef21sgdm(topk(0.1), eta=0.3)"],
        laws=lambda c: [EF21SGDM(c, eta=0.3), EF21SGDM(c, eta=1.0, start="compressed")],
        over=CONTRACTIONS,
        states=["ef21sgdm(randk(0.1, shared=True))"],
    ),
    RuleEntry(
        EControl,
        golden=["econtrol(topk(0.1), eta=0.3)"],
        laws=lambda c: [EControl(c, eta=0.2), EControl(c, eta=1.0, start="zero")],
        over=CONTRACTIONS,
        states=["econtrol(sign())", "econtrol(randk(0.1, shared=True))", "econtrol(randk(0.2))"],
    ),
    RuleEntry(
        EF21SGD2M,
        golden=["ef21sgd2m(topk(0.1), eta=0.3)"],
        laws=lambda c: [EF21SGD2M(c, eta=0.3)],
        over=FEW,
        ddp=["ef21sgd2m(topk(0.1))"],
    ),
    RuleEntry(EF21PAGE, golden=["ef21page(topk(0.1), probability=0.2)"], laws=lambda c: [EF21PAGE(c, 0.4)], over=FEW),
    RuleEntry(
        EF21PP,
        golden=["ef21pp(topk(0.1), probability=0.5)"],
        laws=lambda c: [EF21PP(c, 0.5), EF21PP(c, 0.5, start="zero")],
        over=FEW,
        ddp=["ef21pp(topk(0.1), probability=0.5)", "ef21pp(sign(), probability=0.5, start=zero)"],
        fuzz=[EF21PP(TopK(0.1), 0.5)],
    ),
    RuleEntry(
        EF21BC,
        golden=["ef21bc(topk(0.1), topk(0.2))", "ef21bc(topk(0.1), randk(0.3))"],
        laws=lambda c: [EF21BC(c, RandK(0.4)), EF21BC(TopK(0.2), c, start="compressed")],
        over=FEW,
        ddp=[
            "ef21bc(topk(0.1), randk(0.2))",
            "ef21bc(randk(0.1, shared=True), randk(0.2, shared=True), start=compressed)",
        ],
    ),
    RuleEntry(
        EF21HB,
        golden=["ef21hb(topk(0.1), eta=0.5)"],
        laws=lambda c: [EF21HB(c, eta=0.7)],
        over=FEW,
        ddp=["ef21hb(topk(0.1), eta=0.5)"],
    ),
    RuleEntry(
        EF21W,
        golden=["ef21w(sign(8), smoothness=(1.0, 2.5, 0.5))"],
        laws=lambda c: [EF21W(c, (1.0, 2.5, 0.5))],
        over=FEW,
        ddp=["ef21w(sign(), smoothness={smoothness})"],
    ),
    RuleEntry(
        EFBV,
        golden=["efbv(unbias(randk(0.2)), lam=0.2, nu=0.5)"],
        laws=lambda c: [EFBV(c, lam=0.6, nu=0.8), EFBV(c, lam=0.5, start="compressed")],
        over=FEW,
        alone=[EFBV(Unbias(RandK(0.2)), lam=0.2)],
        ddp=["efbv(unbias(randk(0.2)), lam=0.2, nu=0.5)"],
    ),
    RuleEntry(
        CLAG,
        golden=["clag(topk(0.1), zeta=4.0)", "clag(identity(), zeta=4.0)"],
        laws=lambda c: [CLAG(c, zeta=1.0), CLAG(c, zeta=0.3, start="zero")],
        over=FEW,
        ddp=["clag(topk(0.1), zeta=0.5)", "clag(randk(0.1, shared=True), zeta=0.3)", "clag(identity())"],
        fuzz=[CLAG(TopK(0.1), zeta=1.0)],
    ),
    RuleEntry(
        ThreePCv2,
        golden=["threepcv2(topk(0.1), unbias(randk(0.2)))"],
        laws=lambda c: [ThreePCv2(c, Unbias(RandK(0.5))), ThreePCv2(c, QSGD(3, 8), start="zero")],
        over=FEW,
        ddp=["threepcv2(topk(0.1), unbias(randk(0.2)))"],
    ),
    RuleEntry(
        ThreePCv4,
        golden=["threepcv4(topk(0.1), randk(0.2))"],
        laws=lambda c: [ThreePCv4(c, TopK(0.2)), ThreePCv4(RandK(0.3, shared=True), c, start="compressed")],
        over=FEW,
        ddp=["threepcv4(topk(0.1), randk(0.1, shared=True))"],
        fuzz=[ThreePCv4(TopK(0.1), RandK(0.3, shared=True))],
    ),
    RuleEntry(
        ThreePCv5, golden=["threepcv5(topk(0.4), probability=0.2)"], laws=lambda c: [ThreePCv5(c, 0.4)], over=FEW
    ),
    RuleEntry(
        MARINA,
        golden=["marina(unbias(randk(0.4)), probability=0.2)"],
        alone=[MARINA(Identity(), 0.3), MARINA(Unbias(RandK(0.2)), 0.3), MARINA(QSGD(3, 8), 0.5)],
    ),
    RuleEntry(
        EF21P,
        golden=["ef21p(ef21(topk(0.1)), topk(0.3))"],
        laws=lambda c: [EF21P(EF21(c), TopK(0.4)), EF21P(EF21PP(TopK(0.2), 0.6), c)],
        over=FEW,
        alone=[EF21P(MARINA(Natural(), 0.2), RandK(0.5, shared=True))],
    ),
    RuleEntry(
        VGC,
        golden=[
            "vgc()",
            "vgc(1.0, values=full)",
            "vgc(target(4), positions=word)",
            "vgc(2.0, zeta=0.9, drop_small=True)",
            "vgc(1.0, decay=0.75)",
            "vgc(1.0, values=qsgd4)",
        ],
        alone=[
            VGC(),
            VGC(1.0, zeta=1.0, values="full"),
            VGC(Warmup(0.1, 2.0, 4), values="float16"),
            VGC(Target(20), drop_small=True),
            VGC(2.0, positions="word"),
            VGC(1.0, decay=0.75),
            VGC(1.0, values="qsgd4"),
        ],
        ddp=[
            "vgc(1.0)",
            "vgc(1.0, positions=word)",
            "vgc(1.0, values=qsgd2)",
            "vgc(target(10), values=full, decay=0.9)",
        ],
        states=["vgc(1.0)", "vgc(target(10))", "vgc(target(10), positions=word)", "vgc(1.0, values=qsgd2)"],
        fuzz=[VGC(1.0), VGC(1.0, positions="word"), VGC(0.5, values="qsgd4"), VGC(0.5, values="qsgd2")],
    ),
    RuleEntry(
        Hybrid,
        golden=["hybrid(0.5)", "hybrid(0.5, decay=0.75)"],
        alone=[Hybrid(0.25, decay=0.9), Hybrid(Warmup(0.01, 0.5, 3), alpha=Target(5.0, start=1.0, gain=0.2), zeta=0.9)],
        ddp=["hybrid(0.01)"],
        states=["hybrid(0.01)"],
        fuzz=[Hybrid(0.5)],
    ),
)


def rules(compressor: Compressor) -> list[Feedback]:
    """Every rule that takes any contraction, over one."""
    return [rule for entry in RULE_ENTRIES if entry.over is CONTRACTIONS for rule in entry.forms(compressor)]


CRITERIA = [rule for entry in RULE_ENTRIES if entry.kind in (VGC, Hybrid) for rule in entry.alone]
FAMILY = [
    rule
    for entry in RULE_ENTRIES
    if entry.over is FEW or entry.kind is MARINA
    for rule in (*(rule for compressor in FEW for rule in entry.laws(compressor) if entry.over), *entry.alone)
]
"""The rest of EF21's family and DGC, over fewer compressors."""
METHODS: list[Feedback] = [
    *(rule for c in CONTRACTIONS for rule in rules(c)),
    *(rule for entry in RULE_ENTRIES if entry.over is CONTRACTIONS for rule in entry.alone),
    *FAMILY,
    *CRITERIA,
]
"""Every form of every rule that the laws hold for."""

GOLDEN = [
    *(text for entry in RULE_ENTRIES for text in entry.golden),
    "route({'w': vgc(1.0), '*': memsgd(topk(0.4))}, min_numel=2)",
    "route({'b': memsgd(topk(0.4)), '*': ef21(topk(0.1))}, min_numel=2)",
]

WIRE_COMPRESSORS = [compressor for entry in COMPRESSOR_ENTRIES for compressor in entry.wire]
FUZZ_COMPRESSORS = [compressor for entry in COMPRESSOR_ENTRIES for compressor in entry.fuzz]
FUZZ_RULES: list[Feedback | Route] = [
    *(rule for entry in RULE_ENTRIES for rule in entry.fuzz),
    Route({"a": EF21(TopK(0.2)), "b": Identity(), "*": MemSGD(TopK(0.2, values="float16"))}, min_numel=0),
]

DDP_PAIRS = {
    entry.kind.name: [
        *(
            f"{entry.kind.name}({compressor})"
            for other in COMPRESSOR_ENTRIES
            for compressor in other.ddp
            if entry.kind.agrees or other.kind is not ArcTopK
        ),
        *entry.ddp,
    ]
    for entry in RULE_ENTRIES
    if entry.over is CONTRACTIONS
}
"""Every rule that takes any contraction, with each compressor, and its own forms."""
DDP_CRITERIA = [text for entry in RULE_ENTRIES if entry.kind in (VGC, Hybrid) for text in entry.ddp]
DDP_FAMILY = [
    *(text for entry in RULE_ENTRIES if entry.over is FEW for text in entry.ddp),
    "route({'0.*': clag(topk(0.2)), '2.*': ef21pp(topk(0.2), probability=0.3), '*': ef21bc(topk(0.1), sign())}, "
    "min_numel=20)",
]
DDP_STATES = [text for entry in RULE_ENTRIES for text in entry.states]
