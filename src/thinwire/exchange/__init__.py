"""Exchanges: they move bytes between ranks, knowing nothing of what the bytes mean.

`Exchange` says what one must offer; `Group` is that of a torch process group, `Loopback` that of workers in one
process; `Emulated` wraps any of them as if links of some rate joined the ranks; `Sharded` makes each rank the server
of a share of the numbers; `Hierarchy` has ranks average inside sites before they exchange between them. An exchange of
one's own, with the methods of `Exchange`, is `attach(..., exchange=)`.
"""

from thinwire.exchange.emulated import Emulated as Emulated
from thinwire.exchange.emulated import Link as Link
from thinwire.exchange.emulated import emulated as emulated
from thinwire.exchange.group import Group as Group
from thinwire.exchange.group import Pending as Pending
from thinwire.exchange.hierarchy import Hierarchy as Hierarchy
from thinwire.exchange.loopback import Loopback as Loopback
from thinwire.exchange.protocol import Exchange as Exchange
from thinwire.exchange.protocol import Incoming as Incoming
from thinwire.exchange.protocol import Reduces as Reduces
from thinwire.exchange.protocol import Scatters as Scatters
from thinwire.exchange.protocol import Trades as Trades
from thinwire.exchange.protocol import Traffic as Traffic
from thinwire.exchange.protocol import adds_up as adds_up
from thinwire.exchange.protocol import allgather_bytes as allgather_bytes
from thinwire.exchange.protocol import allreduce_bytes as allreduce_bytes
from thinwire.exchange.sharded import EXCHANGES as EXCHANGES
from thinwire.exchange.sharded import Sharded as Sharded
from thinwire.exchange.sharded import check_exchange_name as check_exchange_name
from thinwire.exchange.sharded import exchange_of as exchange_of
from thinwire.exchange.sharded import owners_among as owners_among
