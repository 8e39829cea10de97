"""Training tasks: digits, text, logistic regression and CIFAR-10, one file each."""

from thinwire.training.tasks.catalogue import TASKS as TASKS
from thinwire.training.tasks.catalogue import load_task as load_task
from thinwire.training.tasks.task import Batch as Batch
from thinwire.training.tasks.task import Defaults as Defaults
from thinwire.training.tasks.task import Task as Task
