"""Ray Train on a local cluster of two workers: run, go on bitwise, the simulation of the same steps."""

import sys
from pathlib import Path

import ray
import torch
from ray import cloudpickle
from sklearn.datasets import load_digits
from torch import nn

import thinwire

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import ray_digits

cloudpickle.register_pickle_by_value(ray_digits)  # as if the example were the script
ray.init(num_cpus=4, include_dashboard=False, log_to_driver=False)
here = Path.cwd()


def checkpoint(storage, epochs):
    result = ray_digits.run(str(here / storage), epochs)
    assert {"loss", "thinwire/sent_bytes", "thinwire/residual_ratio"} <= result.metrics.keys()
    folder = Path(result.checkpoint.path)
    names = ["model.pt", "thinwire-rank00000.pt", "thinwire-rank00001.pt"]
    return [torch.load(folder / name, weights_only=True) for name in names]


whole = checkpoint("whole", 2)
checkpoint("halves", 1)
halves = checkpoint("halves", 1)
assert whole[0]["epoch"] == halves[0]["epoch"] == 2
for name, tensor in whole[0]["model"].items():
    assert torch.equal(tensor, halves[0]["model"][name])
for one, other in zip(whole[1:], halves[1:], strict=True):
    assert one["step"] == other["step"] == 30
    assert all(torch.equal(one["slots"][key], other["slots"][key]) for key in one["slots"])
    assert any(tensor.count_nonzero() for tensor in one["slots"].values())

torch.set_num_threads(1)
torch.manual_seed(0)
images, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = images.float() / 16
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
parameters = dict(model.named_parameters())
simulation = thinwire.Simulation(parameters, "memsgd(topk(0.01))", 2, optimizer=optimizer)
for epoch in range(2):
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(epoch))
    for rows in zip(*(order[rank::2].split(64) for rank in range(2)), strict=True):
        gradients = []
        for own in rows:
            loss = nn.functional.cross_entropy(model(images[own]), labels[own])
            values = torch.autograd.grad(loss, list(parameters.values()))
            gradients.append(dict(zip(parameters, values, strict=True)))
        simulation.step(gradients)
for name, tensor in model.state_dict().items():
    assert torch.equal(tensor, whole[0]["model"][name]), (tensor - whole[0]["model"][name]).abs().max()
ray.shutdown()
print("ended well")
