"""Accelerate on one of two ranks: run, resume bitwise, the plain loop, gradient accumulation, an optimizer refused."""

import torch
from accelerate import Accelerator
from tests.integrations.runs import check_same, check_states, example, numbers, plain, recorded, refused_with_adam
from torch import nn

import thinwire.accelerate

script = example("accelerate")
with recorded() as (given, targets):
    model, handle = script["train"](2, "whole")
    whole = list(zip((inputs[0] for inputs, *_ in given), targets, strict=True))
    script["train"](1, "resumed")
    resumed, after = script["train"](2, "resumed", resume=True)

torch.manual_seed(0)
fresh = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
losses = (lambda ddp, x=x, y=y: nn.functional.cross_entropy(ddp(x), y) for x, y in whole)
check_same(numbers(model), plain(fresh, "memsgd(topk(0.01))", 0.5, losses))
check_same(numbers(model), numbers(resumed))
after.channel.run = handle.channel.run  # runs are numbered at random, and these are two
check_states(handle, after)
assert handle.channel.step == len(whole)

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=3)
model = nn.Linear(4, 1)
model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
handle = thinwire.accelerate.attach(accelerator, model, "ef21(topk(0.5))", optimizer)
for _ in range(6):
    with accelerator.accumulate(model):
        accelerator.backward(model(torch.randn(2, 4)).mean())
        optimizer.step()
        optimizer.zero_grad()
assert handle.channel.step == 2

with refused_with_adam():
    model = nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters()))
    thinwire.accelerate.attach(accelerator, model, "memadam(topk(0.01))", optimizer)
torch.distributed.destroy_process_group()
print("ended well")
