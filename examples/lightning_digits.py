"""Lightning with thinwire: scikit-learn's digits on two CPU processes.

    python examples/lightning_digits.py                  # Lightning starts the second process itself
    python examples/lightning_digits.py --resume         # goes on from the last checkpoint, bit for bit

Needs: pip install 'thinwire[lightning,tasks]'
"""

import sys
from pathlib import Path

import pytorch_lightning as pl
import torch
from pytorch_lightning.callbacks import ModelCheckpoint
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from thinwire.lightning import Thinwire


class Digits(pl.LightningModule):
    """A small network, as any LightningModule is written."""

    def __init__(self):
        super().__init__()
        self.network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch, _):
        images, labels = batch
        loss = nn.functional.cross_entropy(self.network(images), labels)
        self.log("loss", loss, prog_bar=True)
        return loss

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.5)


def train(epochs, folder="checkpoints", resume=None, **options):
    """Train until so many epochs are done; gives the trainer, the model and the callback."""
    pl.seed_everything(0, verbose=False)  # the same model on every rank
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    loader = DataLoader(TensorDataset(images.float() / 16, labels), batch_size=64, shuffle=True)
    model, compression = Digits(), Thinwire("memsgd(topk(0.01))")  # <- one line, and its name below
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=2,
        strategy="ddp",
        max_epochs=epochs,
        callbacks=[compression, ModelCheckpoint(folder, filename="{epoch}", save_top_k=-1)],
        default_root_dir=folder,
        **options,
    )
    trainer.fit(model, loader, ckpt_path=resume)
    return trainer, model, compression


if __name__ == "__main__":
    newest = max(Path("checkpoints").glob("*.ckpt"), key=lambda file: file.stat().st_mtime, default=None)
    resume = newest if "--resume" in sys.argv else None
    trainer, _, compression = train(6 if resume else 3, resume=resume)
    if trainer.is_global_zero:
        print(f"loss {trainer.callback_metrics['loss']:.3f}; {compression.handle.ledger.line()}")
