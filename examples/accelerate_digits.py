"""Accelerate with thinwire: scikit-learn's digits on two CPU processes.

    torchrun --nproc-per-node 2 examples/accelerate_digits.py
    torchrun --nproc-per-node 2 examples/accelerate_digits.py --resume    # goes on from the checkpoint, bit for bit

Needs: pip install 'thinwire[accelerate,tasks]'
"""

import sys
import time

import torch
from accelerate import Accelerator
from accelerate.utils import DataLoaderConfiguration, set_seed
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import thinwire.accelerate


def train(epochs, folder="checkpoint", resume=False):
    """Train to the end of so many epochs; gives the model, the handle and the last loss."""
    # with this sampler the order of an epoch does not depend on where the run began
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(use_seedable_sampler=True))
    set_seed(0)  # the same model on every rank
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    loader = DataLoader(TensorDataset(images.float() / 16, labels), batch_size=64, shuffle=True)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)

    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    handle = thinwire.accelerate.attach(accelerator, model, "memsgd(topk(0.01))", optimizer)  # <- the one line
    begin = 0
    if resume:
        accelerator.load_state(folder)
        begin = handle.channel.step // len(loader)

    for epoch in range(begin, epochs):
        loader.set_epoch(epoch)
        for batch, targets in loader:
            loss = nn.functional.cross_entropy(model(batch), targets)
            optimizer.zero_grad()
            accelerator.backward(loss)
            optimizer.step()
    accelerator.save_state(folder)
    accelerator.print(f"loss {loss.item():.3f}; {handle.ledger.line()}")
    return model, handle


if __name__ == "__main__":
    train(6 if "--resume" in sys.argv else 3, resume="--resume" in sys.argv)
    torch.distributed.destroy_process_group()
    time.sleep(0.1)  # gloo's threads are done with their tensors then: docs/troubleshooting.md
