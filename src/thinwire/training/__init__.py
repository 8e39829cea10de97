"""Training runs: a configuration goes in, a JSON-lines record comes out.

`config` says what is run, on which of the `tasks`. `train` checks it, resumes, and chooses between two engines:
in simulation the `loop` runs in this process; else the `launcher` starts n processes, each a `worker` with that loop.
The `loop` warms a method up and then takes a `run` step by step.
A step computes the workers' `gradients` (or all in one `joined_pass`), exchanges them and calls the optimizer.
The `recorder` writes down what happened, `records` reads it, `summary` and `sections` make tables and sentences of it.
"""

from thinwire.training.config import RunConfig
from thinwire.training.records import RunRecord, read_records
from thinwire.training.train import train

__all__ = ["RunConfig", "RunRecord", "read_records", "train"]
