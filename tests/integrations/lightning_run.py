"""Lightning on one of two ranks: run, resume bitwise, the plain loop, what is logged, an optimizer refused."""

import warnings
from pathlib import Path

warnings.filterwarnings("ignore", "`isinstance.treespec, LeafSpec.` is deprecated")  # in Lightning's own code

import pytorch_lightning as pl  # noqa: E402
import torch  # noqa: E402
from pytorch_lightning.loggers import CSVLogger  # noqa: E402
from tests.integrations.runs import (  # noqa: E402
    check_same,
    check_states,
    example,
    numbers,
    plain,
    recorded,
    refused_with_adam,
)
from torch import nn  # noqa: E402

from thinwire.lightning import Thinwire  # noqa: E402

script = example("lightning")
options = {"enable_progress_bar": False, "enable_model_summary": False, "log_every_n_steps": 5}

with recorded() as (given, _):
    trainer, model, callback = script["train"](2, "whole", logger=CSVLogger("logs", version=0), **options)
    torch.distributed.barrier()
    _, resumed, after = script["train"](2, "resumed", resume="whole/epoch=0.ckpt", logger=False, **options)
whole = given[: len(given) * 2 // 3]  # two epochs, and then one

pl.seed_everything(0, verbose=False)
losses = (lambda ddp, pair=inputs[0]: nn.functional.cross_entropy(ddp(pair[0]), pair[1]) for inputs, *_ in whole)
check_same(numbers(model), plain(script["Digits"]().network, "memsgd(topk(0.01))", 0.5, losses))
check_same(numbers(model), numbers(resumed))
check_states(callback.handle, after.handle)
assert callback.handle.channel.step == len(whole)

assert {"thinwire/sent_bytes", "thinwire/ratio_fp32", "thinwire/residual_ratio"} <= trainer.logged_metrics.keys()
assert trainer.logged_metrics["thinwire/sent_bytes"] > 0
assert {"MB sent", "× fewer", "residual"} <= trainer.progress_bar_metrics.keys()
if trainer.is_global_zero:
    assert "thinwire/residual_ratio" in Path("logs/lightning_logs/version_0/metrics.csv").read_text()

assert callback.handle.flush() > 0  # also after `fit`


class WithAdam(script["Digits"]):
    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters())


with refused_with_adam():
    trainer = pl.Trainer(
        accelerator="cpu", devices=2, strategy="ddp", callbacks=[Thinwire("memadam(topk(0.01))")], logger=False,
        enable_checkpointing=False, **options,
    )  # fmt: skip
    trainer.fit(WithAdam(), torch.utils.data.DataLoader([(torch.zeros(64), 0)]))
print("ended well")
