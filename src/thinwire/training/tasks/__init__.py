"""Training tasks, one file each: a class with all that a run and the command line ask of it, under `@register`."""

from thinwire.training.tasks.cifar10 import Cifar10 as Cifar10
from thinwire.training.tasks.digits import Digits as Digits
from thinwire.training.tasks.logistic import Logistic as Logistic
from thinwire.training.tasks.sampling import epoch_slice as epoch_slice
from thinwire.training.tasks.sampling import seeded as seeded
from thinwire.training.tasks.sampling import split as split
from thinwire.training.tasks.task import TASKS as TASKS
from thinwire.training.tasks.task import Batch as Batch
from thinwire.training.tasks.task import Defaults as Defaults
from thinwire.training.tasks.task import Task as Task
from thinwire.training.tasks.task import check_task as check_task
from thinwire.training.tasks.task import load_task as load_task
from thinwire.training.tasks.task import register as register
from thinwire.training.tasks.text import Text as Text
