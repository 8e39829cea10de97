"""The pseudocode of EF21's family in plain numpy (float64): nothing of thinwire is used here.

As in `transcriptions`: `gradient(i, x, t)` is worker i's gradient at x in round t, `compress(v, t, i)` is C(v), and
every function returns the iterates x_0 .. x_T as rows. Random choices (`coin`, `joins`) are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from tests.paper.transcriptions import Compress, Gradient, Step, Vector

ThreePoint = Callable[[Vector, Vector, Vector, int, int], Vector]
"""C_{h,y}(x) in round t by worker i."""


def mean(vectors: list[Vector]) -> Vector:
    total = np.zeros_like(vectors[0])
    for v in vectors:
        total = total + v / len(vectors)
    return total


def sgd2m(gradient: Gradient, x: Vector, n: int, compress: Compress, step: Step, steps: int, eta: float) -> Vector:
    """EF21-SGD2M (Fatkhullin et al. 2023, algorithm 2)."""
    v = [gradient(i, x, 0) for i in range(n)]
    u, local, g = list(v), list(v), mean(v)
    path = [x]
    for t in range(steps):
        x = x - step(t) * g
        path.append(x)
        for i in range(n):
            v[i] = (1 - eta) * v[i] + eta * gradient(i, x, t + 1)
            u[i] = (1 - eta) * u[i] + eta * v[i]
            c = compress(u[i] - local[i], t + 1, i)
            local[i] = local[i] + c
            g = g + c / n
    return np.array(path)


def partial(
    gradient: Gradient, x: Vector, n: int, compress: Compress, step: Step, steps: int, joins: Callable[[int, int], bool]
) -> Vector:
    """EF21-PP (Bells and Whistles): worker i changes g_i in round t if it joins."""
    local = [gradient(i, x, 0) for i in range(n)]
    g = mean(local)
    path = [x]
    for t in range(steps):
        x = x - step(t) * g
        path.append(x)
        for i in range(n):
            if joins(t + 1, i):
                c = compress(gradient(i, x, t + 1) - local[i], t + 1, i)
                local[i] = local[i] + c
                g = g + c / n
    return np.array(path)


def bidirectional(
    gradient: Gradient,
    x: Vector,
    n: int,
    compress: Compress,
    master: Callable[[Vector, int], Vector],
    step: Step,
    steps: int,
) -> Vector:
    """EF21-BC (Bells and Whistles): the master compresses what it knows against what it has told."""
    local = [gradient(i, x, 0) for i in range(n)]
    known = mean(local)
    g = known
    path = [x]
    for t in range(steps):
        x = x - step(t) * g
        path.append(x)
        for i in range(n):
            c = compress(gradient(i, x, t + 1) - local[i], t + 1, i)
            local[i] = local[i] + c
            known = known + c / n
        g = g + master(known - g, t + 1)
    return np.array(path)


def heavy_ball(gradient: Gradient, x: Vector, n: int, compress: Compress, step: Step, steps: int, eta: float) -> Vector:
    """EF21-HB (Bells and Whistles): x <- x - s v, v <- eta v + g, v_0 = g_0."""
    local = [gradient(i, x, 0) for i in range(n)]
    g = mean(local)
    v = g
    path = [x]
    for t in range(steps):
        x = x - step(t) * v
        path.append(x)
        for i in range(n):
            c = compress(gradient(i, x, t + 1) - local[i], t + 1, i)
            local[i] = local[i] + c
            g = g + c / n
        v = eta * v + g
    return np.array(path)


def weighted(gradient: Gradient, x: Vector, compress: Compress, step: Step, steps: int, L: Vector) -> Vector:
    """EF21-W (Error Feedback Reloaded, algorithm 2)."""
    n, w = L.size, L / L.sum()
    local = [gradient(i, x, 0) / (n * w[i]) for i in range(n)]
    path = [x]
    for t in range(steps):
        x = x - step(t) * sum(w[i] * local[i] for i in range(n))
        path.append(x)
        for i in range(n):
            local[i] = local[i] + compress(gradient(i, x, t + 1) / (n * w[i]) - local[i], t + 1, i)
    return np.array(path)


def ef_bv(
    gradient: Gradient, x: Vector, n: int, compress: Compress, step: Step, steps: int, lam: float, nu: float
) -> Vector:
    """EF-BV (Condat, Yi and Richtarik 2022, algorithm 1) from h_i = 0, without a regulariser."""
    h = [np.zeros_like(x) for _ in range(n)]
    path = [x]
    for t in range(steps):
        d = [compress(gradient(i, x, t) - h[i], t, i) for i in range(n)]
        x = x - step(t) * (mean(h) + nu * mean(d))
        h = [h[i] + lam * d[i] for i in range(n)]
        path.append(x)
    return np.array(path)


def three_points(gradient: Gradient, x: Vector, n: int, C: ThreePoint, step: Step, steps: int) -> Vector:
    """3PC (Richtarik et al. 2022, algorithm 1): g_i <- C_{g_i, grad f_i(x)}(grad f_i(x+)), x+ = x - s mean of g_i."""
    local = [gradient(i, x, 0) for i in range(n)]
    before = list(local)
    path = [x]
    for t in range(steps):
        x = x - step(t) * mean(local)
        path.append(x)
        now = [gradient(i, x, t + 1) for i in range(n)]
        local = [C(local[i], before[i], now[i], t + 1, i) for i in range(n)]
        before = now
    return np.array(path)


def lag(zeta: float) -> ThreePoint:
    return lambda h, y, x, t, i: x if np.sum((x - h) ** 2) > zeta * np.sum((x - y) ** 2) else h


def clag(compress: Compress, zeta: float) -> ThreePoint:
    def point(h: Vector, y: Vector, x: Vector, t: int, i: int) -> Vector:
        return h + compress(x - h, t, i) if np.sum((x - h) ** 2) > zeta * np.sum((x - y) ** 2) else h

    return point


def v2(compress: Compress, Q: Compress) -> ThreePoint:
    def point(h: Vector, y: Vector, x: Vector, t: int, i: int) -> Vector:
        b = h + Q(x - y, t, i)
        return b + compress(x - b, t, i)

    return point


def v4(first: Compress, second: Compress) -> ThreePoint:
    def point(h: Vector, y: Vector, x: Vector, t: int, i: int) -> Vector:
        b = h + first(x - h, t, i)
        return b + second(x - b, t, i)

    return point


def v5(compress: Compress, coin: Callable[[int], bool]) -> ThreePoint:
    return lambda h, y, x, t, i: x if coin(t) else h + compress(x - y, t, i)


def marina(
    gradient: Gradient, x: Vector, n: int, Q: Compress, step: Step, steps: int, coin: Callable[[int], bool]
) -> Vector:
    """MARINA (Gorbunov et al. 2021, algorithm 1), with the same samples at both points."""
    g = sum(gradient(i, x, 0) for i in range(n)) / n
    path = [x]
    for t in range(steps):
        before, x = x, x - step(t) * g
        path.append(x)
        if coin(t + 1):
            g = sum(gradient(i, x, t + 1) for i in range(n)) / n
        else:
            g = g + mean([Q(gradient(i, x, t + 1) - gradient(i, before, t + 1), t + 1, i) for i in range(n)])
    return np.array(path)


def page(
    gradient: Gradient,
    full: Gradient,
    x: Vector,
    n: int,
    compress: Compress,
    step: Step,
    steps: int,
    coin: Callable[[int], bool],
) -> Vector:
    """EF21-PAGE (Bells and Whistles): v_i is the full gradient, or moves by a mini-batch's difference."""
    v = [full(i, x, 0) for i in range(n)]
    local, g = list(v), mean(v)
    path = [x]
    for t in range(steps):
        before, x = x, x - step(t) * g
        path.append(x)
        for i in range(n):
            if coin(t + 1):
                v[i] = full(i, x, t + 1)
            else:
                v[i] = v[i] + gradient(i, x, t + 1) - gradient(i, before, t + 1)
            c = compress(v[i] - local[i], t + 1, i)
            local[i] = local[i] + c
            g = g + c / n
    return np.array(path)


def ef21_stepping(
    gradient: Gradient,
    x: Vector,
    n: int,
    compress: Compress,
    steps: int,
    move: Callable[[Vector, Vector, int], Vector],
) -> Vector:
    """EF21 with another step: x <- move(x, g, t)."""
    local = [gradient(i, x, 0) for i in range(n)]
    g = mean(local)
    path = [x]
    for t in range(steps):
        x = move(x, g, t)
        path.append(x)
        for i in range(n):
            c = compress(gradient(i, x, t + 1) - local[i], t + 1, i)
            local[i] = local[i] + c
            g = g + c / n
    return np.array(path)


def muon(
    gradient: Gradient,
    X: Vector,
    n: int,
    compress: Compress,
    broadcast: Callable[[Vector, int], Vector],
    move: Callable[[Vector, Vector, int], Vector],
    steps: int,
    beta: float,
) -> Vector:
    """EF21-Muon (Gruntkowska et al. 2025, algorithm 1) for one layer: X <- X + t LMO(G), W <- W + C_s(X - W), then the
    momenta at W. With a plain step and beta = 1 this is EF21-P around EF21."""
    W = X
    M = [gradient(i, W, 0) for i in range(n)]
    G = list(M)
    path = [X]
    for t in range(steps):
        X = move(X, mean(G), t)
        path.append(X)
        W = W + broadcast(X - W, t + 1)
        for i in range(n):
            M[i] = (1 - beta) * M[i] + beta * gradient(i, W, t + 1)
            G[i] = G[i] + compress(M[i] - G[i], t + 1, i)
    return np.array(path)


def soft_threshold(x: Vector, threshold: float) -> Vector:
    return np.sign(x) * np.maximum(np.abs(x) - threshold, 0.0)


def polar(G: Vector) -> Any:
    """U V' of G = U S V'."""
    U, _, V = np.linalg.svd(G, full_matrices=False)
    return U @ V
