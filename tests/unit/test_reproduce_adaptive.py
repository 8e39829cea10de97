"""The transformer experiment, small: settings, the text, the schedule, runs, the table, the command and its page."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from thinwire import parse
from thinwire.cli.main import main
from thinwire.errors import ConfigError, DataError, ThinwireError
from thinwire.papers.adaptive.model import Corpus, Transformer
from thinwire.papers.adaptive.runs import AdaptiveRun, Glance, _Passes, rate_at, run
from thinwire.papers.adaptive.sections import ADAPTIVE_EXPERIMENT
from thinwire.papers.adaptive.settings import INGREDIENTS, METHODS, NAMED, SCALES, AdaptiveSetting, settings

CPU = torch.device("cpu")
TINY = replace(SCALES["small"], width=16, depth=1, heads=2, context=16, workers=2, batch=2)


@pytest.fixture
def text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A text in which a letter follows from the one before it, and a model that is small enough for it."""
    monkeypatch.setitem(SCALES, "small", TINY)
    (tmp_path / "alphabet.txt").write_bytes(b"abcdefgh" * 13_000)
    return str(tmp_path / "alphabet.txt")


def setting(rule: str, optimizer: str, steps: int = 4) -> AdaptiveSetting:
    return AdaptiveSetting(rule, rule, optimizer, "small", "alphabet.txt", steps)


def done(label: str, rule: str, seed: int, loss: float, sent: int) -> AdaptiveRun:
    own = AdaptiveSetting(label, rule, "adamw", "full", "a.txt", 100, seed)
    points = tuple(Glance(step, 1.0, sent * step // 100, loss + 100 - step) for step in (25, 50, 75, 100))
    return AdaptiveRun(own, 10, 8, 8_000, points)


def test_every_method_at_every_seed_with_the_optimizer_that_is_meant() -> None:
    chosen = settings([*METHODS, "memadam(topk(0.02))", "ef21(topk(0.1))"], "small", "python", None, 2)
    assert len(chosen) == 2 * (len(METHODS) + 2)
    assert {one.steps for one in chosen} == {SCALES["small"].steps}
    assert all((one.optimizer == "sgd") == one.rule.startswith("memadam") for one in chosen)
    extra = settings(["dense"], "full", "python", 5, 1, ingredients=True)
    assert [one.label for one in extra] == ["dense", *INGREDIENTS]
    assert all(str(parse(one.rule)) == one.rule for one in [*chosen, *extra])
    with pytest.raises(ConfigError, match="scale must be one of small, full, other, got 'huge'"):
        settings(["dense"], "huge", "python", None, 1)
    with pytest.raises(ConfigError, match="seeds must be at least 1, got 0"):
        settings(["dense"], "small", "python", None, 0)


def test_the_rate_rises_along_a_line_and_falls_along_a_cosine_to_a_tenth() -> None:
    own = setting("plain(identity())", "adamw", steps=200)
    rates = [rate_at(step, own) / own.rate for step in range(200)]
    assert rates[:3] == pytest.approx([0.05, 0.1, 0.15])
    assert rates[19] == rates[20] == 1.0
    assert rates[110] == pytest.approx(0.55)
    assert rates[-1] == pytest.approx(0.1 + 0.9 * 0.5 * (1 + math.cos(math.pi * 179 / 180)))


def test_a_text_is_read_in_its_own_alphabet_and_a_tenth_is_held_out(text: str, tmp_path: Path) -> None:
    corpus = Corpus.read(text, CPU)
    assert corpus.tokens == 8
    assert (len(corpus.train), len(corpus.held_out)) == (93_600, 10_400)
    inputs, targets = corpus.windows(torch.tensor([0, 5]), 4)
    assert inputs.tolist() == [[0, 1, 2, 3], [5, 6, 7, 0]]
    assert targets.tolist() == [[1, 2, 3, 4], [6, 7, 0, 1]]
    with pytest.raises(DataError, match="cannot be read: No such file"):
        Corpus.read(str(tmp_path / "none.txt"), CPU)
    (tmp_path / "short.txt").write_text("short")
    with pytest.raises(DataError, match="has 5 bytes; give one of 100,000 or more"):
        Corpus.read(str(tmp_path / "short.txt"), CPU)


def test_python_s_own_library_is_the_text_where_none_is_given() -> None:
    assert len(Corpus.read(None, CPU).train) > 1_000_000


def test_a_token_does_not_see_those_after_it() -> None:
    torch.manual_seed(0)
    model = Transformer(TINY, 8).eval()
    first = torch.arange(16)[None] % 8
    other = first.clone()
    other[0, 10:] = 0
    with torch.no_grad():
        seen, changed = model(first), model(other)
    assert torch.equal(seen[:, :10], changed[:, :10])
    assert not torch.equal(seen[:, 10:], changed[:, 10:])


@pytest.mark.parametrize("name", ["dense", "memadam 1 %", "Muon", "EF21-Muon 5 %"])
def test_a_run_learns_and_counts_its_bytes(text: str, name: str) -> None:
    own = replace(setting(*NAMED[name], steps=60), rate=1e-2)
    found = run(own, text, lambda step: None)
    assert found == replace(run(own, text, lambda step: None), curve=found.curve)
    assert found.parameters == sum(p.numel() for p in Transformer(TINY, 8).parameters())
    assert found.curve[0].loss > 1.5 > 1.0 > found.end  # of log 8 = 2.08
    assert found.dense == 60 * 4 * found.parameters  # two workers: an all-reduce sends the model once
    assert found.ratio == 1.0 if name in ("dense", "Muon") else 5 < found.ratio < 100
    assert AdaptiveRun.of_plain(found.plain()) == found


def test_the_second_moment_is_the_sum_of_the_windows_squares(text: str) -> None:
    """Without dropout: the gradient is that of one pass over all windows, q that of their passes one by one."""
    corpus, own = Corpus.read(text, CPU), (TINY.batch, TINY.context)
    torch.manual_seed(0)
    model = Transformer(TINY, 8).eval()
    inputs, targets = corpus.windows(torch.tensor([3, 1000]), TINY.context)
    once, apart = (
        _Passes(model, own, CPU).of(inputs, targets),
        _Passes(model, own, CPU, squares=True).of(inputs, targets),
    )
    assert not once.moment
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(apart.gradient[name], once.gradient[name])
        shares = [
            torch.autograd.grad(model.loss(*one) / 2, parameter)[0]
            for one in ((inputs[i : i + 1], targets[i : i + 1]) for i in range(2))
        ]
        torch.testing.assert_close(apart.moment[name], sum(share.square() for share in shares))


def test_vgc_is_told_how_many_windows_were_squared(text: str) -> None:
    """Two windows a worker: at alpha = 2 nothing could ever pass."""
    found = run(replace(setting("vgc(1.0)", "adamw", steps=60), rate=1e-2), text, lambda step: None)
    assert found.curve[0].loss > found.end
    assert found.ratio > 2
    with pytest.raises(ThinwireError, match=r"alpha"):
        run(setting("vgc(2.0)", "adamw"), text, lambda step: None)


def test_the_table_sets_each_method_beside_dense() -> None:
    runs = [done("dense", METHODS["dense"][0], seed, 2.0 + seed, 1) for seed in (0, 1)]
    runs += [done("other", "memsgd(topk(0.01))", seed, 2.2 + 1.1 * seed, 80) for seed in (0, 1)]
    (section,) = ADAPTIVE_EXPERIMENT.sections(runs)
    assert section.sentences == ["other: 100 × fewer bytes, loss +10.0% beside dense"]
    head, dense, other = section.table
    assert dict(zip(head, dense, strict=True))["100"] == "2.500"
    row = dict(zip(head, other, strict=True))
    assert (row["100"], row["least – most"], row["beside dense"]) == ("2.750", "2.200 – 3.300", "+10.0%")
    assert (row["fewer bytes"], row["a step"]) == ("100.0 ×", "1 B")
    assert row["s at 100 Mbit/s"] == "6.4e-08"
    words = ("steps", "bytes", "time on the wire")
    assert [chart.title for chart in section.charts] == [f"Held-out loss against {word}" for word in words]


def test_the_command_writes_a_record_and_a_page(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record, page = tmp_path / "r.jsonl", tmp_path / "p.html"
    words = [
        "reproduce",
        "adaptive",
        "--text",
        text,
        "--scale",
        "small",
        "--steps",
        "3",
        "--methods",
        "dense; memadam 1 %",
    ]
    assert main([*words, "--out", str(record), "--page", str(page)]) == 0
    assert "Under AdamW · small · alphabet.txt · 3 steps" in capsys.readouterr().out
    assert "memadam 1 %" in page.read_text()
    written = record.read_text()
    assert main([*words, "--out", str(record), "--resume"]) == 0  # all is done
    assert record.read_text().splitlines()[1:] == written.splitlines()[1:]


# --------------------------------------------------------------------------------------------------------- outer steps


def test_windows_add_outer_steps_of_every_length() -> None:
    chosen = settings(["dense", "SparseLoCo", "memsgd(topk(0.1))"], "small", "python", 60, 1, every=(15, 30))
    assert [(one.label, one.every) for one in chosen] == [
        ("dense", 0),
        ("SparseLoCo, H = 15", 15),
        ("memsgd(topk(0.1)), H = 15", 15),
        ("SparseLoCo, H = 30", 30),
        ("memsgd(topk(0.1)), H = 30", 30),
    ]
    with pytest.raises(ConfigError, match="every must be at least 1 and divide the 60 steps, got 25"):
        settings(["DiLoCo"], "small", "python", 60, 1, every=(25,))
    with pytest.raises(ConfigError, match="DiLoCo exchanges every so many steps: say how many, such as --every 30"):
        settings(["DiLoCo"], "small", "python", 60, 1)


def test_outer_runs_train_and_their_bytes_are_beside_an_all_reduce_at_every_step(text: str) -> None:
    chosen = settings(["DiLoCo", "SparseLoCo"], "small", "alphabet.txt", 40, 1, every=(4,))
    dense, sparse = (run(one, text, lambda step: None) for one in chosen)
    assert [look.step for look in sparse.curve] == list(range(4, 41, 4))
    assert dense.dense == sparse.dense == 40 * 2 * 4 * sparse.parameters * (2 - 1) // 2
    assert dense.ratio == pytest.approx(4)
    assert sparse.ratio == sparse.dense / sparse.curve[-1].sent > 40
    assert dense.end < dense.curve[0].loss
    assert sparse.end < sparse.curve[0].loss


def test_a_window_of_one_with_sgd_s_mean_is_training_together(text: str) -> None:
    """Outer steps at H = 1 average the workers' AdamW steps; they come close to AdamW on the mean gradient."""
    (apart,) = settings(["plain(identity())"], "small", "alphabet.txt", 30, 1, every=(1,))
    together = replace(apart, every=0)
    ends = [run(one, text, lambda step: None).end for one in (apart, together)]
    assert ends[0] == pytest.approx(ends[1], rel=0.1)
