"""One script for Ray Train, torchrun and Slurm: scikit-learn's digits on two processes, with the same bits under each.

    python examples/ray_digits.py                                       # Ray Train, on a cluster on this machine
    torchrun --standalone --nproc-per-node 2 examples/ray_digits.py
    sbatch JOB                                                          # the job is in docs/launching.md

A second run goes on from the first. Every rank runs `train`, whoever started it; launchers differ in who makes the
process group and in where checkpoints lie. On many machines give the script a folder that all of them reach; for Ray,
run `ray start --head` on one and `ray start --address=HEAD:6379` on the others, then the script on any of them.

Needs: pip install 'thinwire[ray,tasks]'; without Ray, 'thinwire[tasks]'
"""

import hashlib
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import thinwire
from thinwire.checkpoint import Rotating


def train(config):
    """What each rank runs: `epochs` more of them than the checkpoint it begins with, if there is one."""
    torch.set_num_threads(1)  # launchers choose differently, and sums then differ in their last bits
    torch.manual_seed(0)  # the same model on every rank
    images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
    images = images.float() / 16
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(model)  # ray.train.torch.prepare_model(model) does this too
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    handle = thinwire.attach(model, "memsgd(topk(0.01))", optimizer)  # <- the one line

    checkpoints = config["checkpoints"]
    begin = checkpoints.load(model.module, handle)
    for epoch in range(begin, begin + config["epochs"]):
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
        for rows in order[dist.get_rank() :: dist.get_world_size()].split(64):
            loss = nn.functional.cross_entropy(model(images[rows]), labels[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        metrics = {"loss": loss.item(), "epoch": epoch + 1, "parameters": digest(model), **handle.ledger.metrics()}
        checkpoints.save(model.module, handle, metrics)
    return metrics


def digest(model):
    """What two models have in common only if they are equal bit for bit."""
    return hashlib.sha256(b"".join(part.detach().numpy().tobytes() for part in model.parameters())).hexdigest()[:16]


class InRay:
    """Ray's checkpoints: it puts all ranks' files into one folder of the storage."""

    def load(self, model, handle):
        """Load the newest; gives the epoch at which it was saved."""
        import ray.train

        if not (checkpoint := ray.train.get_checkpoint()):
            return 0
        with checkpoint.as_directory() as folder:
            saved = torch.load(f"{folder}/model.pt")
            handle.load(folder)  # every rank its own file
        model.load_state_dict(saved["model"])
        return saved["epoch"]

    def save(self, model, handle, metrics):
        """Save, and report the metrics."""
        import ray.train

        with tempfile.TemporaryDirectory() as folder:
            handle.save(folder)
            if dist.get_rank() == 0:
                torch.save({"model": model.state_dict(), "epoch": metrics["epoch"]}, f"{folder}/model.pt")
            ray.train.report(metrics, checkpoint=ray.train.Checkpoint.from_directory(folder))


class InFolder:
    """thinwire's own checkpoints, for launchers that keep none."""

    def __init__(self, folder):
        self.rotating = Rotating(folder)

    def load(self, model, handle):
        """Load the newest, which may be of another number of ranks; gives the epoch at which it was saved."""
        epoch, saved = self.rotating.resume() or (0, None)
        if saved:
            model.load_state_dict(saved["model"])
            handle.load_state_dict(saved["thinwire"], on_resize="redistribute")
        return epoch

    def save(self, model, handle, metrics):
        """Save every rank's part."""
        self.rotating.save(metrics["epoch"], {"model": model.state_dict(), "thinwire": handle.state_dict()})


def run(storage, epochs=3):
    """One run of two workers of Ray Train; it goes on from the newest checkpoint in the storage."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # Ray reports its use to its makers unless told otherwise
    from ray.train import RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    trainer = TorchTrainer(
        train,
        train_loop_config={"epochs": epochs, "checkpoints": InRay()},
        torch_config=TorchConfig(backend="gloo"),
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(name="digits", storage_path=storage),
    )
    return trainer.fit()


if __name__ == "__main__":
    folder = os.path.abspath(sys.argv[1] if len(sys.argv) > 1 else "digits-results")
    if "RANK" in os.environ:  # torchrun set it, or Slurm's line did
        dist.init_process_group("gloo")
        print(train({"epochs": 3, "checkpoints": InFolder(folder)}))
        dist.destroy_process_group()
        time.sleep(0.1)  # gloo's threads are done with their tensors then: docs/troubleshooting.md
    else:
        print(run(folder).metrics)
