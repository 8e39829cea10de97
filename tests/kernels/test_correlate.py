"""The squares of a convolution's per-sample weight gradients: every back-end against the definition in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from tests.kernels.backends import BACKENDS
from torch import Tensor

from thinwire import ops
from thinwire.ops import Product, reference


@dataclass(frozen=True)
class Case:
    samples: int
    channels: int
    outputs: int
    places: tuple[int, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1


CASES = {
    "plane": Case(5, 3, 20, (8, 9), (3, 3), (1, 1), (1, 1)),
    "many tiles": Case(3, 40, 130, (4, 4), (3, 3), (1, 1), (1, 1)),
    "one place": Case(9, 64, 64, (1, 1), (3, 3), (1, 1), (1, 1)),
    "stride, dilation, groups": Case(3, 8, 16, (4, 6), (3, 2), (2, 1), (1, 2), 2),
    "depthwise": Case(4, 12, 12, (5, 5), (3, 3), (1, 1), (1, 1), 12),
    "line": Case(4, 6, 8, (13,), (3,), (2,), (2,)),
    "one number a kernel": Case(5, 20, 70, (40,), (1,), (1,), (1,)),
    "space": Case(2, 3, 8, (3, 4, 2), (2, 2, 2), (1, 1, 1), (1, 1, 1)),
}


def squares(name: str, out: Tensor, beta: int, image: Tensor, delta: Tensor, case: Case) -> Tensor:
    more = (case.stride, case.dilation, case.groups)
    with ops.backend(name):
        ops.correlation_squares_(out, beta, image, delta, *more)
    return out


@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("beta", [0, 1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@pytest.mark.parametrize(("name", "device"), BACKENDS)
def test_every_back_end_squares_per_sample_gradients(
    name: str, device: str, case: Case, dtype: torch.dtype, beta: int, tf32: bool
) -> None:
    """|q - q64| <= u Q with Q = sum over z of (sum over l of |delta| |x|)^2, which bounds every rounding's share: 2 L
    roundings in each c_z, one for each sample added; in TF32 both factors are rounded to 11 bits first."""
    generator = torch.Generator().manual_seed(case.outputs)
    sides = zip(case.places, case.kernel, case.stride, case.dilation, strict=True)
    extent = [(n - 1) * stride + dilation * (size - 1) + 1 for n, size, stride, dilation in sides]
    image = torch.randn(case.samples, case.channels, *extent, generator=generator).to(dtype)
    delta = torch.randn(case.samples, case.outputs, *case.places, generator=generator).to(dtype)
    before = torch.randn(case.outputs, case.channels // case.groups, *case.kernel, generator=generator).to(dtype)
    out = before.clone() if beta else torch.full_like(before, float("nan"))
    with torch.backends.cudnn.flags(allow_tf32=tf32):
        found = squares(name, out.to(device), beta, image.to(device), delta.to(device), case).cpu().double()
    expected, most = torch.zeros_like(before).double(), torch.zeros_like(before).double()
    more = (case.stride, case.dilation, case.groups)
    reference.correlation_squares_(expected, 0, image.double(), delta.double(), *more)
    reference.correlation_squares_(most, 0, image.double().abs(), delta.double().abs(), *more)
    roundings = 2 * delta[0, 0].numel() + case.samples + 1
    unit = roundings * torch.finfo(dtype).eps + (4 * 2.0**-10 if tf32 and device == "cuda" else 0.0)
    assert ((found - (expected + beta * before.double())).abs() <= unit * (most + beta * before.abs())).all()


@pytest.mark.gpu
@pytest.mark.parametrize("product", ["convolution", "matmul"])
def test_the_kernel_follows_the_setting_of_its_own_kind_of_product(product: Product) -> None:
    """TF32 is allowed to the other kind alone: the float32 bound of the test above holds, and TF32 would break it."""
    case = CASES["one number a kernel"]
    generator = torch.Generator().manual_seed(0)
    image = torch.randn(case.samples, case.channels, *case.places, generator=generator)
    delta = torch.randn(case.samples, case.outputs, *case.places, generator=generator)
    more = (case.stride, case.dilation, case.groups)
    expected = torch.zeros(case.outputs, case.channels, 1, dtype=torch.float64)
    most = torch.zeros_like(expected)
    reference.correlation_squares_(expected, 0, image.double(), delta.double(), *more)
    reference.correlation_squares_(most, 0, image.double().abs(), delta.double().abs(), *more)
    before = torch.backends.cuda.matmul.fp32_precision
    exact = (2 * case.places[0] + case.samples + 1) * torch.finfo(torch.float32).eps
    gaps = {}
    try:
        for kind in ("convolution", "matmul"):  # the kind that TF32 is allowed to
            torch.backends.cuda.matmul.fp32_precision = "tf32" if kind == "matmul" else "ieee"
            with torch.backends.cudnn.flags(allow_tf32=kind == "convolution"):
                out = torch.empty(case.outputs, case.channels, 1, device="cuda")
                with ops.backend("triton"):
                    ops.correlation_squares_(out, 0, image.cuda(), delta.cuda(), *more, product)
            gaps[kind] = ((out.cpu().double() - expected).abs() / most).max()
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    other = "matmul" if product == "convolution" else "convolution"
    assert gaps[other] <= exact < gaps[product]
