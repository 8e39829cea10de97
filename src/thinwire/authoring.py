"""For authors of compressors, rules and message formats: every name that a file of one's own needs.

A compressor is a frozen dataclass over `Compressor` (or `Unbiased`), a rule one over `Feedback` (or `Increments`, for
rules whose messages are increments of what the server holds), a format a class over `Payload` with a `tag` of its own.
`@register` makes each of them known to `parse`, the command line, records and checkpoints.
"""

from thinwire.compressors import Compressor as Compressor
from thinwire.compressors import Draws as Draws
from thinwire.compressors import Unbiased as Unbiased
from thinwire.errors import ConfigError as ConfigError
from thinwire.feedback import Feedback as Feedback
from thinwire.feedback import Need as Need
from thinwire.feedback import Round as Round
from thinwire.feedback import Signal as Signal
from thinwire.feedback import Slot as Slot
from thinwire.feedback import State as State
from thinwire.feedback.base import check_compressor as check_compressor
from thinwire.feedback.base import check_contraction as check_contraction
from thinwire.feedback.base import mean_into as mean_into
from thinwire.feedback.increments import LOCAL as LOCAL
from thinwire.feedback.increments import MEAN as MEAN
from thinwire.feedback.increments import Increments as Increments
from thinwire.feedback.increments import check_rule as check_rule
from thinwire.layout import Layout as Layout
from thinwire.ops import Key as Key
from thinwire.payload import Dense as Dense
from thinwire.payload import Empty as Empty
from thinwire.payload import Payload as Payload
from thinwire.payload import Reader as Reader
from thinwire.payload import Sparse as Sparse
from thinwire.payload import add_all_to as add_all_to
from thinwire.payload.message import Chunk as Chunk
from thinwire.payload.message import fields as fields
from thinwire.payload.message import raw as raw
from thinwire.payload.values import value_format as value_format
from thinwire.spec import register as register
