"""The Trainer of transformers with thinwire: lines of digits as text, a tiny GPT-2 made from its configuration.

    torchrun --nproc-per-node 2 examples/trainer_digits.py
    torchrun --nproc-per-node 2 examples/trainer_digits.py --resume    # goes on from the checkpoint, bit for bit

Needs: pip install 'thinwire[transformers,tasks]'
"""

import sys
import time

import torch
from sklearn.datasets import load_digits
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from thinwire.transformers import ThinwireCallback


def train(steps, folder="checkpoints", resume=None):
    """Train until so many steps are done; gives the Trainer and the callback."""
    set_seed(0)  # the same model on every rank
    lines = torch.tensor(load_digits().images[:512]).long().flatten(1)  # 64 tokens of 0 to 16
    data = [{"input_ids": line, "labels": line} for line in lines]
    config = GPT2Config(vocab_size=17, n_positions=64, n_embd=32, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0)
    model = GPT2LMHeadModel(config)
    args = TrainingArguments(
        folder,
        max_steps=steps,
        per_device_train_batch_size=16,
        lr_scheduler_type="constant",
        max_grad_norm=0,  # by default the Trainer clips to a norm of 1: see docs/frameworks.md
        ddp_find_unused_parameters=False,  # one exchange a bucket less
        logging_steps=5,
        save_steps=5,
        use_cpu=True,
        report_to="none",
    )
    compression = ThinwireCallback("memadam(topk(0.05))")  # <- one line, and its name below
    sgd = torch.optim.SGD(model.parameters(), lr=3e-3)  # memadam brings its own Adam: SGD in AdamW's place
    trainer = Trainer(model, args, train_dataset=data, optimizers=(sgd, None), callbacks=[compression])
    trainer.train(resume_from_checkpoint=resume)
    return trainer, compression


if __name__ == "__main__":
    resume = "--resume" in sys.argv
    trainer, compression = train(20 if resume else 10, resume=resume or None)
    if trainer.is_world_process_zero():
        print(compression.handle.ledger.line())
    torch.distributed.destroy_process_group()
    time.sleep(0.1)  # gloo's threads are done with their tensors then: docs/troubleshooting.md
