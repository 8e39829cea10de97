"""Train a small network on scikit-learn's digits under DDP, with one more line than without thinwire.

    torchrun --nproc-per-node 4 examples/train_ddp.py
    torchrun --nproc-per-node 4 examples/train_ddp.py "ef21sgdm(topk(0.01), eta=0.2)"

Needs: pip install 'thinwire[tasks]'
"""

import sys

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire

method = sys.argv[1] if len(sys.argv) > 1 else "memsgd(topk(0.01))"
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)  # the same model on every rank

images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = images.float() / 16
train, test = slice(0, 1400), slice(1400, None)

model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=400)
handle = thinwire.attach(ddp, thinwire.parse(method), optimizer)  # <- the one line

mine = torch.randperm(1400)[rank::size]  # each rank its own share
for _ in range(400):
    batch = mine[torch.randint(len(mine), (64,))]
    loss = nn.functional.cross_entropy(ddp(images[train][batch]), labels[train][batch])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    schedule.step()

if rank == 0:
    accuracy = (model(images[test]).argmax(1) == labels[test]).float().mean()
    account = handle.ledger.summary()
    print(f"{method}: test accuracy {accuracy:.1%}, {account['sent_bytes'] / 1e6:.2f} MB sent by each worker,")
    print(f"{account['ratio_fp32']:.0f} times fewer than float32 and {account['ratio_bf16']:.0f} than bf16 all-reduce")
dist.destroy_process_group()
