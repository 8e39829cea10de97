"""Ray Train with thinwire: scikit-learn's digits on two workers of a local Ray cluster.

    python examples/ray_digits.py    # starts the cluster on this machine; a second run goes on from the first

On many machines: `ray start --head` on one, `ray start --address=HEAD:6379` on the others, this script on any of them,
and a `storage_path` that all of them reach.

Needs: pip install 'thinwire[ray,tasks]'
"""

import os
import sys
import tempfile

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports its use to its makers unless told otherwise

import ray.train
import ray.train.torch
import torch
from ray.train import Checkpoint, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from sklearn.datasets import load_digits
from torch import nn

import thinwire


def train(config):
    """What each worker runs: `epochs` more of them than the checkpoint it begins with, if there is one."""
    torch.manual_seed(0)  # the same model on every rank
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = ray.train.torch.prepare_model(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    handle = thinwire.attach(model, "memsgd(topk(0.01))", optimizer)  # <- the one line

    begin = 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(f"{folder}/model.pt")
            handle.load(folder)  # every rank its own file
        model.module.load_state_dict(saved["model"])
        begin = saved["epoch"]

    context = ray.train.get_context()
    for epoch in range(begin, begin + config["epochs"]):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for rows in order[context.get_world_rank() :: context.get_world_size()].split(64):
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        with tempfile.TemporaryDirectory() as folder:  # Ray puts all ranks' files into one checkpoint
            handle.save(folder)
            if context.get_world_rank() == 0:
                torch.save({"model": model.module.state_dict(), "epoch": epoch + 1}, f"{folder}/model.pt")
            metrics = {"loss": loss.item(), "epoch": epoch + 1, **handle.ledger.metrics()}
            ray.train.report(metrics, checkpoint=Checkpoint.from_directory(folder))


def run(storage, epochs=3):
    """One run of two workers; it goes on from the newest checkpoint in the storage."""
    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": epochs},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="digits", storage_path=storage),
    )
    return trainer.fit()


if __name__ == "__main__":
    result = run(os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "ray-results"))
    print(result.metrics)
