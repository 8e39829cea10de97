"""The precision of float32 products is read under every setting that torch knows, old or new, and never raises."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import torch

from thinwire.ops import precision, product_precision

CASES = {
    # setting: what it makes of convolutions and of matrix products on a GPU, and of both on a CPU
    "pass": ("tf32", "ieee", "ieee", "ieee"),
    "b.cudnn.conv.fp32_precision = 'ieee'": ("ieee", "ieee", "ieee", "ieee"),
    "b.cudnn.conv.fp32_precision = 'tf32'": ("tf32", "ieee", "ieee", "ieee"),
    "b.cudnn.conv.fp32_precision = 'none'": ("ieee", "ieee", "ieee", "ieee"),
    "b.cudnn.fp32_precision = 'ieee'": ("ieee", "ieee", "ieee", "ieee"),
    "b.fp32_precision = 'ieee'": ("ieee", "ieee", "ieee", "ieee"),
    "b.fp32_precision = 'tf32'": ("tf32", "tf32", "tf32", "tf32"),
    "b.cuda.matmul.fp32_precision = 'tf32'": ("tf32", "tf32", "ieee", "ieee"),
    "b.cuda.matmul.fp32_precision = 'ieee'": ("tf32", "ieee", "ieee", "ieee"),
    "b.cudnn.allow_tf32 = False": ("ieee", "ieee", "ieee", "ieee"),
    "b.cudnn.allow_tf32 = True": ("tf32", "ieee", "ieee", "ieee"),
    "b.cuda.matmul.allow_tf32 = True": ("tf32", "tf32", "ieee", "ieee"),
    "b.mkldnn.conv.fp32_precision = 'bf16'": ("tf32", "ieee", "bf16", "ieee"),
    "torch.set_float32_matmul_precision('high')": ("tf32", "tf32", "ieee", "tf32"),
    "torch.set_float32_matmul_precision('medium')": ("tf32", "tf32", "ieee", "bf16"),
    "torch.set_float32_matmul_precision('highest')": ("tf32", "ieee", "ieee", "ieee"),
}
if torch.__version__ < "2.13":  # torch 2.11 leaves convolutions in TF32 under these two, in truth and in what it says
    CASES |= {f"b.{name}fp32_precision = 'ieee'": ("tf32", "ieee", "ieee", "ieee") for name in ("", "cudnn.")}
SCRIPT = """
import json, os, sys, torch
from thinwire.ops import product_epsilon, product_precision
b, found = torch.backends, {}
for setting in json.load(sys.stdin):
    reader, writer = os.pipe()
    if os.fork() == 0:
        exec(setting)
        kinds = [(product, device) for device in ("cuda", "cpu") for product in ("convolution", "matmul")]
        said = [(product_precision(*kind), product_epsilon(kind[0], torch.float32, kind[1])) for kind in kinds]
        os.write(writer, json.dumps(said).encode())
        os._exit(0)
    os.close(writer)
    found[setting] = json.loads(os.fdopen(reader).read() or "null")
    os.wait()
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """What each setting leads to, each in a process of its own: torch's first state cannot be brought back."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], input=json.dumps([*CASES]), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    answers: dict[str, Any] = json.loads(done.stdout)
    return answers


@pytest.mark.parametrize("setting", CASES)
def test_the_precision_is_read_under_every_setting(found: dict[str, Any], setting: str) -> None:
    expected = CASES[setting]
    assert found[setting] == [[one, precision.EPSILON[one]] for one in expected]


@pytest.mark.parametrize("product", ["convolution", "matmul"])
@pytest.mark.parametrize("allowed", [True, False])
def test_a_torch_without_the_newer_names_is_asked_for_its_flags(
    product: Any, allowed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "_settings", lambda product, device: None)
    monkeypatch.setattr(precision, "_old_flag", lambda product: allowed)
    assert product_precision(product) == ("tf32" if allowed else "ieee")
    assert product_precision(product, "cpu") == "ieee"


def test_formats_have_the_epsilon_of_their_bits() -> None:
    assert precision.EPSILON["ieee"] == torch.finfo(torch.float32).eps
    assert precision.EPSILON["tf32"] == torch.finfo(torch.float16).eps  # ten bits of fraction, both
    assert precision.EPSILON["bf16"] == torch.finfo(torch.bfloat16).eps
    assert precision.product_epsilon("matmul", torch.float64, "cpu") == torch.finfo(torch.float64).eps
