"""Ray Train on a local cluster of two workers: run, go on bitwise, the simulation of the same steps."""

import sys
from pathlib import Path

import ray
import ray.train.torch
import torch
from ray import cloudpickle

sys.path.insert(0, str(Path(__file__).parents[2]))
sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
import ray_digits
from tests.integrations.runs import simulated

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
ray_digits.DistributedDataParallel = ray.train.torch.prepare_model  # Ray's own way to wrap a model: the same bits
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
model, _ = simulated(2)
for name, tensor in model.state_dict().items():
    assert torch.equal(tensor, whole[0]["model"][name]), (tensor - whole[0]["model"][name]).abs().max()
ray.shutdown()
print("ended well")
