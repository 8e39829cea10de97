"""The EF21 paper's tuned runs take as many rounds to each tolerance as an independent program took on the same data."""

from __future__ import annotations

import pytest

from thinwire.papers.ef21.runs import run
from thinwire.papers.ef21.settings import tuned

ROUNDS: dict[str, dict[str, tuple[int | None, int | None, int | None, int | None]]] = {
    "phishing": {
        "EF21 k=1, 16×": (240, 286, 334, 379),
        "EF k=1, 16×": (247, None, None, None),
        "EF21+ k=1, 256×": (85, 117, 150, 193),
        "GD 1×": (21, 22, 24, 25),
    },
    "a9a": {
        "EF21 k=4, 64×": (174, 185, 205, 227),
        "EF k=4, 64×": (156, 233, None, None),
        "EF21+ k=1, 2048×": (187, 227, 284, 348),
        "GD 2×": (74, 78, 83, 88),
    },
}
"""To 1e-4, 1e-5, 1e-6 and 1e-7, by a numpy program apart from this one: float64, x⁰ from default_rng(0), whole
gradients at the start; None where 6,000 rounds were not enough (EF's floors: 1.4e-5 on phishing, 9e-6 on a9a)."""
BUDGET = 2500
"""Rounds here: the floors are there long before."""


@pytest.mark.libsvm
@pytest.mark.parametrize("dataset", ROUNDS)
def test_rounds_to_each_tolerance(dataset: str, libsvm_folder: str) -> None:
    for setting in tuned(dataset, BUDGET):
        outcome = run(setting, libsvm_folder)
        for reached, expected in zip(outcome.reached, ROUNDS[dataset][setting.label], strict=True):
            if expected is None:
                assert reached.rounds is None, (setting.title, reached)
                continue
            assert reached.rounds is not None, (setting.title, reached)
            assert abs(reached.rounds - expected) <= max(2, 0.01 * expected), (setting.title, reached)
            assert reached.paper_bits == 32 * (setting.k or outcome.d) * reached.rounds


@pytest.mark.libsvm
def test_ef_floors_and_ef21_does_not(libsvm_folder: str) -> None:
    runs = {setting.label.split()[0]: run(setting, libsvm_folder) for setting in tuned("phishing", BUDGET)}
    assert runs["EF21"].status == runs["EF21+"].status == "reached"
    assert runs["EF"].best == pytest.approx(1.4e-5, rel=0.1)  # the independent program's floor, printed with two digits
