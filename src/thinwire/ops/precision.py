"""How torch may round the factors of float32 products: its own settings, which differ by kind of product and device.

torch keeps them twice. Its newer names (`torch.backends.cudnn.conv.fp32_precision` and the like) can always be read and
follow the older flags; the older ones (`torch.backends.cudnn.allow_tf32`) raise an error once a newer name was set.
"""

from __future__ import annotations

from typing import Any, Literal

import torch

Product = Literal["matmul", "convolution"]
"""Which settings a product follows: those of matrix products (linear layers) or of convolutions."""

EPSILON = {"ieee": 2.0**-23, "tf32": 2.0**-10, "bf16": 2.0**-7}
"""The distance from 1 to the next number of each format."""


def product_precision(product: Product, device: str = "cuda") -> str:
    """The format that factors of float32 products may be rounded to on a device: "ieee" (float32), "tf32" or "bf16"."""
    setting: Any = _settings(product, device)
    precision = getattr(setting, "fp32_precision", None)
    if precision is None:  # a torch that has the older flags only
        precision = "tf32" if device == "cuda" and _old_flag(product) else "ieee"
    return precision if precision in EPSILON else "ieee"  # "none": nobody has asked for less


def product_epsilon(product: Product, dtype: torch.dtype, device: str) -> float:
    """ε of the factors of a product of two tensors of this type."""
    if dtype is not torch.float32:
        return torch.finfo(dtype).eps
    return EPSILON[product_precision(product, device)]


def _settings(product: Product, device: str) -> Any:
    """Where torch keeps the newer setting; None where it has none."""
    backends: Any = torch.backends
    if device == "cuda":
        return backends.cuda.matmul if product == "matmul" else getattr(backends.cudnn, "conv", None)
    return getattr(backends.mkldnn, "matmul" if product == "matmul" else "conv", None)


def _old_flag(product: Product) -> bool:
    return bool((torch.backends.cuda.matmul if product == "matmul" else torch.backends.cudnn).allow_tf32)
