"""Contests of VGC's two steps: r + g, v + q, the test, what is sent taken out, and v's decay."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import torch

from thinwire import ops
from thinwire.bench.contest import Contest, by_reference
from thinwire.bench.inputs import Inputs

ZETA = 0.999


def vgc(given: Inputs) -> Contest:
    """VGC's step."""
    state = _squares(given)
    step = partial(ops.variance_, **state, zeta=ZETA)
    return Contest(step, by_reference(step), partial(_numpy_vgc, given=given, **state))


def hybrid(given: Inputs) -> Contest:
    """The hybrid's step, with a tau that just the share that is sent reaches."""
    state, tau = _squares(given), given.tau
    step = partial(ops.variance_strom_, **state, zeta=ZETA, tau=tau)
    return Contest(step, by_reference(step), partial(_numpy_hybrid, given=given, tau=tau, **state))


def _squares(given: Inputs) -> dict[str, Any]:
    """v and q of which just the given share of r + g is sent, an alpha for each piece, and g.

    zeta (v + q) = v: what is not sent stays as it is from call to call, and what was sent is sent again.
    """
    layout, device = given.layout, given.first.device
    alphas = torch.linspace(1, 2, len(layout.pieces), device=device)
    sizes = torch.tensor([piece.numel for piece in layout.pieces], device=device)
    sums = (given.tau**2 / alphas).repeat_interleave(sizes)
    squares, moment = ZETA * sums, (1 - ZETA) * sums
    return {"squares": squares, "value": given.second, "moment": moment, "layout": layout, "alphas": alphas}


def _numpy_sums(r: Any, given: Inputs, squares: Any, moment: Any, alphas: Any) -> tuple[Any, Any]:
    """v + q, and where r + g is unambiguous."""
    v, sizes = squares.numpy(), [piece.numel for piece in given.layout.pieces]
    np.add(r, given.second.numpy(), out=r)
    np.add(v, moment.numpy(), out=v)
    return v, r * r > np.repeat(alphas.numpy(), sizes) * v


def _numpy_vgc(r: Any, given: Inputs, squares: Any, moment: Any, alphas: Any, **_: Any) -> None:
    v, clear = _numpy_sums(r, given, squares, moment, alphas)
    positions = np.flatnonzero(clear)
    v *= np.float32(ZETA)
    r[positions], v[positions] = 0, 0


def _numpy_hybrid(r: Any, given: Inputs, tau: float, squares: Any, moment: Any, alphas: Any, **_: Any) -> None:
    v, clear = _numpy_sums(r, given, squares, moment, alphas)
    positions, step = np.flatnonzero(clear & (np.abs(r) > tau)), np.float32(tau)
    old, left = r[positions], v[positions]
    v *= np.float32(ZETA)
    v[positions] = np.maximum(left - step * (2 * np.abs(old) - step), 0)
    r[positions] = old - np.sign(old) * step
