"""The papers' pseudocode in plain numpy (float64), written from the papers alone: nothing of thinwire is used here.

Every function returns the iterates x_0 .. x_T as rows. `gradient(i, x, t)` is worker i's gradient at x in round t;
`compress(v, t, i)` is C(v) as a dense vector; `step(t)` is the step size, a number or a vector.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
Gradient = Callable[[int, Vector, int], Vector]
Compress = Callable[[Vector, int, int], Vector]
Step = Callable[[int], Any]
Samples = Callable[[int, Vector, int], Vector]
"""samples(i, x, t): the gradients of the samples in worker i's batch, one in each row."""


def keep(v: Vector, indices: Any) -> Vector:
    """v at the given indices, zero elsewhere."""
    out = np.zeros_like(v)
    out[indices] = v[indices]
    return out


def top(k: int) -> Compress:
    """top_k: the k entries of largest magnitude; a stable sort gives ties to the lower index."""
    return lambda v, t, i: keep(v, np.argsort(-np.abs(v), kind="stable")[:k])


def scaled_sign(v: Vector, t: int, i: int) -> Vector:
    """(|v|_1 / d) sign(v), sign(0) = +1 (Karimireddy et al. 2019)."""
    return np.abs(v).sum() / v.size * np.where(v < 0, -1.0, 1.0)


def gradient_descent(gradient: Gradient, x: Vector, n: int, step: Step, steps: int) -> Vector:
    """x <- x - s (1/n) sum_i grad_i."""
    path = [x]
    for t in range(steps):
        x = x - step(t) * (sum(gradient(i, x, t) for i in range(n)) / n)
        path.append(x)
    return np.array(path)


def plain(gradient: Gradient, x: Vector, n: int, compress: Compress, step: Step, steps: int) -> Vector:
    """Compressed gradient descent without memory: x <- x - s (1/n) sum_i C(grad_i)."""
    path = [x]
    for t in range(steps):
        x = x - step(t) * (sum(compress(gradient(i, x, t), t, i) for i in range(n)) / n)
        path.append(x)
    return np.array(path)


def mem_sgd(
    gradient: Gradient, x: Vector, n: int, compress: Compress, step: Step, steps: int, decay: float = 1.0
) -> tuple[Vector, Vector]:
    """Mem-SGD (Stich et al. 2018, algorithm 1; n workers averaged), in update units; also the memories at the end.

    With a decay as in SparseLoCo (Sarfi et al. 2025): e <- beta e + update before compression.
    """
    memory = np.zeros((n, x.size))
    path = [x]
    for t in range(steps):
        sent = np.zeros_like(x)
        for i in range(n):
            p = decay * memory[i] + step(t) * gradient(i, x, t)
            g = compress(p, t, i)
            memory[i] = p - g
            sent = sent + g
        x = x - sent / n
        path.append(x)
    return np.array(path), memory


Project = Callable[[int], Vector]
"""project(t): the matrix V of round t, which all workers have drawn alike."""


def arc_rows(given: Vector, V: Vector, k: int) -> Vector:
    """ARC-Top-K (arXiv 2510.26709): which numbers travel, by the k rows of largest norm of the mean of all X_i V.

    X_i is given[i] in rows as long as V is high, the last one filled up with zeros.
    """
    n, d = given.shape
    c = len(V)
    m = math.ceil(d / c)
    X = np.pad(given, ((0, 0), (0, m * c - d))).reshape(n, m, c)
    P = sum(X[i] @ V for i in range(n)) / n
    chosen = np.argsort(-(P * P).sum(1), kind="stable")[:k]
    return np.isin(np.arange(d) // c, chosen)


def arc_mem_sgd(
    gradient: Gradient, x: Vector, n: int, project: Project, k: int, step: Step, steps: int
) -> tuple[Vector, Vector]:
    """Mem-SGD whose workers compress by ARC-Top-K, in update units; also the memories at the end."""
    memory = np.zeros((n, x.size))
    path = [x]
    for t in range(steps):
        p = np.array([memory[i] + step(t) * gradient(i, x, t) for i in range(n)])
        travels = arc_rows(p, project(t), k)
        memory = np.where(travels, 0.0, p)
        x = x - np.where(travels, p, 0.0).sum(0) / n
        path.append(x)
    return np.array(path), memory


def arc_ef21m(
    gradient: Gradient, x: Vector, n: int, project: Project, k: int, step: Step, steps: int, eta: float
) -> Vector:
    """EF21 with momentum by ARC-Top-K: v_i and g_i begin as the first gradients, which travel whole."""
    v = np.array([gradient(i, x, 0) for i in range(n)])
    g = v.copy()
    path = [x]
    for t in range(steps):
        if t > 0:
            v = np.array([(1 - eta) * v[i] + eta * gradient(i, x, t) for i in range(n)])
            travels = arc_rows(v - g, project(t), k)
            g = np.where(travels, v, g)
        x = x - step(t) * g.sum(0) / n
        path.append(x)
    return np.array(path)


def dgc(
    gradient: Gradient,
    x: Vector,
    n: int,
    compress: Compress,
    step: Step,
    steps: int,
    m: float,
    *,
    nesterov: bool,
    masking: bool,
    clip: float = math.inf,
    decay: float = 1.0,
) -> Vector:
    """DGC (Lin et al. 2018, algorithms 4 and 5); V in update units, U in gradient units. The paper has no decay."""
    U, V = np.zeros((n, x.size)), np.zeros((n, x.size))
    path = [x]
    for t in range(steps):
        total = np.zeros_like(x)
        for k in range(n):
            G = gradient(k, x, t)
            G = G * min(1.0, clip / np.sqrt((G * G).sum()))
            V[k] *= decay
            if nesterov:
                U[k] = m * (U[k] + G)
                V[k] = V[k] + step(t) * (U[k] + G)
            else:
                U[k] = m * U[k] + G
                V[k] = V[k] + step(t) * U[k]
            sent = compress(V[k], t, k)
            V[k] = V[k] - sent
            U[k] = np.where((sent != 0) & masking, 0.0, U[k])
            total = total + sent
        x = x - total / n
        path.append(x)
    return np.array(path)


def ef21(
    gradient: Gradient, x: Vector, n: int, compress: Compress, step: Step, steps: int, start: str = "gradient"
) -> Vector:
    """EF21 (Richtarik et al. 2021, algorithm 2): step with the old g, then compress the change at the new x."""
    first = [gradient(i, x, 0) for i in range(n)]
    match start:
        case "gradient":
            local = first
        case "compressed":
            local = [compress(v, 0, i) for i, v in enumerate(first)]
        case _:
            local = [np.zeros_like(x) for _ in range(n)]
    g = np.zeros_like(x)
    for v in local:
        g = g + v / n
    path = [x]
    for t in range(steps):
        x = x - step(t) * g
        path.append(x)
        for i in range(n):
            c = compress(gradient(i, x, t + 1) - local[i], t + 1, i)
            local[i] = local[i] + c
            g = g + c / n
    return np.array(path)


def ef21_plus(gradient: Gradient, x: Vector, n: int, compress: Compress, step: Step, steps: int) -> tuple[Vector, int]:
    """EF21+ (algorithm 3): the closer of C(grad) and g_i + C(grad - g_i); also how often it was the former."""
    local = [gradient(i, x, 0) for i in range(n)]
    path, replaced = [x], 0
    for t in range(steps):
        x = x - step(t) * (sum(local) / n)
        path.append(x)
        for i in range(n):
            grad = gradient(i, x, t + 1)
            b, m = compress(grad, t + 1, i), local[i] + compress(grad - local[i], t + 1, i)
            closer = np.linalg.norm(m - grad) <= np.linalg.norm(b - grad)
            local[i] = m if closer else b
            replaced += not closer
    return np.array(path), replaced


def ef21_sgdm(gradient: Gradient, x: Vector, n: int, compress: Compress, step: Step, steps: int, eta: float) -> Vector:
    """EF21-SGDM (Fatkhullin et al. 2023, algorithm 1), v_i and g_i starting as the first gradient."""
    momentum = [gradient(i, x, 0) for i in range(n)]
    local = list(momentum)
    g = np.zeros_like(x)
    for v in local:
        g = g + v / n
    path = [x]
    for t in range(steps):
        x = x - step(t) * g
        path.append(x)
        for i in range(n):
            momentum[i] = (1 - eta) * momentum[i] + eta * gradient(i, x, t + 1)
            c = compress(momentum[i] - local[i], t + 1, i)
            local[i] = local[i] + c
            g = g + c / n
    return np.array(path)


def econtrol(
    gradient: Gradient, x: Vector, n: int, compress: Compress, step: Step, steps: int, eta: float, start: str
) -> Vector:
    """EControl (Gao et al. 2024, algorithm 2): h_i starts as the first gradient, or as zero with nothing sent yet."""
    error = [np.zeros_like(x) for _ in range(n)]
    h = [np.zeros_like(x) for _ in range(n)]
    mean = np.zeros_like(x)
    path = [x]
    for t in range(steps):
        for i in range(n):
            grad = gradient(i, x, t)
            if t == 0 and start == "gradient":
                delta = grad
            else:
                delta = compress(eta * error[i] + grad - h[i], t, i)
            error[i] = error[i] + grad - h[i] - delta
            h[i] = h[i] + delta
            mean = mean + delta / n
        x = x - step(t) * mean
        path.append(x)
    return np.array(path)


def four_bits(group: dict[int, float]) -> dict[int, float]:
    """VGC's code of a group of numbers by their indices: a sign and a power of two each; some are not sent."""
    if not group:
        return {}
    top = math.floor(math.log2(max(abs(r) for r in group.values())))
    sent = {}
    for i, r in group.items():
        low = 2.0 ** math.floor(math.log2(abs(r)))
        nearer = low if abs(r) - low < 2 * low - abs(r) else 2 * low
        truncated = min(nearer, 2.0**top)
        if top - math.log2(truncated) <= 7:
            sent[i] = math.copysign(truncated, r)
    return sent


def as_they_are(group: dict[int, float]) -> dict[int, float]:
    return group


def drawn_levels(s: int, draws: Iterator[Vector]) -> Callable[[dict[int, float]], dict[int, float]]:
    """QSGD's levels (Alistarh et al. 2017, section 3.1) of a group, relative to its largest magnitude in float32, cut
    off; each call takes the next vector of uniform draws."""

    def encode(group: dict[int, float]) -> dict[int, float]:
        u, largest = next(draws), max((abs(r) for r in group.values()), default=0.0)
        narrow = np.float32(largest)
        m = float(narrow if float(narrow) <= largest else np.nextafter(narrow, np.float32(0)))
        sent = {}
        for i, r in group.items():
            low = math.floor(abs(r) * s / m)
            xi = min(low + 1 if u[i] < abs(r) * s / m - low else low, s)
            if xi > 0:
                sent[i] = math.copysign(xi * m / s, r)
        return sent

    return encode


def vgc(
    samples: Samples,
    x: Vector,
    n: int,
    step: Step,
    steps: int,
    alpha: float,
    zeta: float,
    encode: Callable[[dict[int, float]], dict[int, float]],
    resets_all: bool,
    decay: float = 1.0,
) -> tuple[Vector, int]:
    """VGC (Tsuzuku et al. 2018, algorithm 1); also how many numbers were sent.

    The text resets all that passes the test (`resets_all`); else what the code leaves out counts as not having passed.
    The text has no decay: with one, a gradient that has waited for t steps counts decay^t.
    """
    r, v = np.zeros((n, x.size)), np.zeros((n, x.size))
    path, count = [x], 0
    for t in range(steps):
        mean = np.zeros_like(x)
        for w in range(n):
            gradients = samples(w, x, t)
            batch = len(gradients)
            r[w] = decay * r[w] + gradients.sum(0) / batch
            v[w] = decay**2 * v[w] + ((gradients / batch) ** 2).sum(0)
            passed = {i: float(r[w, i]) for i in range(x.size) if r[w, i] ** 2 > alpha * v[w, i]}
            sent = encode(passed)
            count += len(sent)
            for i in range(x.size):
                if i in (passed if resets_all else sent):
                    mean[i] += sent.get(i, 0.0)
                    r[w, i] = v[w, i] = 0.0
                else:
                    v[w, i] *= zeta
        x = x - step(t) * (mean / n)
        path.append(x)
    return np.array(path), count


def hybrid(
    samples: Samples,
    x: Vector,
    n: int,
    step: Step,
    steps: int,
    alpha: float,
    zeta: float,
    tau: float,
    decay: float = 1.0,
) -> tuple[Vector, int]:
    """VGC with Strom's threshold (Tsuzuku et al. 2018, algorithm 2); also how many numbers were sent."""
    r, v = np.zeros((n, x.size)), np.zeros((n, x.size))
    path, count = [x], 0
    for t in range(steps):
        mean = np.zeros_like(x)
        for w in range(n):
            gradients = samples(w, x, t)
            batch = len(gradients)
            r[w] = decay * r[w] + gradients.sum(0) / batch
            v[w] = decay**2 * v[w] + ((gradients / batch) ** 2).sum(0)
            for i in range(x.size):
                if abs(r[w, i]) > tau and r[w, i] ** 2 > alpha * v[w, i]:
                    s = math.copysign(tau, r[w, i])
                    mean[i] += s
                    v[w, i] = max(v[w, i] - 2 * abs(r[w, i]) * tau + tau**2, 0.0)
                    r[w, i] -= s
                    count += 1
                else:
                    v[w, i] *= zeta
        x = x - step(t) * (mean / n)
        path.append(x)
    return np.array(path), count
