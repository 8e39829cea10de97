"""The Trainer on one of two ranks: run, resume bitwise, the plain loop, its logs, what it warns of and refuses."""

import warnings
from functools import partial

import pytest
import torch
from tests.integrations.runs import check_same, check_states, example, numbers, plain, recorded, refused_with_adam
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from thinwire.errors import CheckpointWarning, OptimizerWarning, StateError
from thinwire.transformers import ThinwireCallback

script = example("trainer")
with recorded() as (given, _):
    trainer, callback = script["train"](10, "whole")
    whole = [(kwargs, state) for _, kwargs, state in given]
    resumed, after = script["train"](10, "whole", resume="whole/checkpoint-5")

set_seed(0)
fresh = GPT2LMHeadModel(trainer.model.config)
# the Trainer divides by the tokens of all ranks, and DDP takes the mean over them
factor = 2 if "num_items_in_batch" in whole[0][0] else 1


def loss_of(ddp, kwargs, state):
    torch.set_rng_state(state)
    return ddp(**kwargs).loss * factor


losses = (partial(loss_of, kwargs=kwargs, state=state) for kwargs, state in whole)
check_same(numbers(trainer.model), plain(fresh.train(), "memadam(topk(0.05))", 3e-3, losses))
check_same(numbers(trainer.model), numbers(resumed.model))
check_states(callback.handle, after.handle)
assert callback.handle.channel.step == 10

for log in trainer.state.log_history[:2]:
    assert {"loss", "thinwire/sent_bytes", "thinwire/ratio_fp32", "thinwire/residual_ratio"} <= log.keys()
assert trainer.callback_handler.callbacks[0] is callback


def small(rule, folder, optimizer, **arguments):
    config = GPT2Config(vocab_size=5, n_positions=4, n_embd=4, n_layer=1, n_head=1, bos_token_id=0, eos_token_id=0)
    model, line = GPT2LMHeadModel(config), torch.tensor([1, 2, 3, 4])
    args = TrainingArguments(folder, max_steps=2, use_cpu=True, report_to="none", disable_tqdm=True, **arguments)
    data = [{"input_ids": line, "labels": line}] * 64
    trainer = Trainer(model, args, train_dataset=data, optimizers=(optimizer(model.parameters(), lr=0.1), None))
    trainer.add_callback(ThinwireCallback(rule))
    return trainer


with refused_with_adam():
    small("memadam(topk(0.1))", "refused", torch.optim.AdamW, save_strategy="no").train()
with pytest.warns(OptimizerWarning, match="clips gradients to a norm of 1 "):
    small("memsgd(topk(0.1))", "clipped", torch.optim.SGD, save_steps=1).train()
torch.distributed.barrier()
with warnings.catch_warnings():
    warnings.simplefilter("error", OptimizerWarning)  # its numbers are gradients: clipping takes nothing unusual away
    small("ef21(topk(0.1))", "unclipped", torch.optim.SGD, save_strategy="no").train()

with pytest.raises(StateError, match=r"belongs to memsgd\(topk\(0.1\)\), this run uses ef21"):
    small("ef21(topk(0.1))", "clipped", torch.optim.SGD, save_strategy="no").train("clipped/checkpoint-1")
with pytest.raises(StateError, match="is not there to read thinwire's state from"), pytest.warns(CheckpointWarning):
    small("memsgd(topk(0.1))", "other", torch.optim.SGD, save_strategy="no").train("clipped/checkpoint-1")
torch.distributed.destroy_process_group()
print("ended well")
