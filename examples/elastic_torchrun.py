"""Train on scikit-learn's digits while hosts come and go: torchrun starts those that are left, with all that they know.

    torchrun --nnodes 1:3 --nproc-per-node 1 --max-restarts 100 --rdzv-backend c10d --rdzv-endpoint HOST:29400 \\
        examples/elastic_torchrun.py FOLDER [STEPS]

Start the same line on each host; FOLDER must be one that all of them see. A host that is lost ends a step for all:
torchrun then starts the others' processes again, and these go on from the newest checkpoint. What the lost host had not
sent is in that checkpoint, and is shared out among those that are left.

Needs: pip install 'thinwire[tasks]'
"""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.checkpoint import Rotating

folder, steps = sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 400
dist.init_process_group("gloo", timeout=timedelta(seconds=30))  # how long a silent host is waited for
rank, size = dist.get_rank(), dist.get_world_size()
torch.set_num_threads(1)
torch.manual_seed(0)  # the same model on every rank

images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = images.float() / 16
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
ddp = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
handle = thinwire.attach(ddp, "memsgd(topk(0.01))", optimizer)

checkpoints = Rotating(folder)
step, saved = checkpoints.resume() or (0, None)  # <- of however many hosts
if saved is not None:
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    handle.load_state_dict(saved["thinwire"], on_resize="redistribute")

generator = torch.Generator().manual_seed(1000 * step + rank)
while step < steps:
    batch = torch.randint(len(images), (64,), generator=generator)
    optimizer.zero_grad()
    nn.functional.cross_entropy(ddp(images[batch]), labels[batch]).backward()
    optimizer.step()
    step += 1
    if step % 20 == 0:
        parts = {"model": model, "optimizer": optimizer, "thinwire": handle}
        checkpoints.save(step, {name: part.state_dict() for name, part in parts.items()})

if rank == 0:
    accuracy = (model(images).argmax(1) == labels).float().mean()
    print(f"{step} steps, the last of them with {size} workers: accuracy {accuracy:.1%}")
dist.destroy_process_group()
