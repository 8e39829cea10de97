"""Elastic runs: workers leave and join between two steps, and nothing that a survivor has not sent is lost.

`ElasticHandle` is one worker, ignorant of who says who is there; `thinwire.torchft` drives it by torchft's quorums.
What becomes of states is told in membership.py, what becomes of a step that not all have taken in transaction.py.
"""

from thinwire.engines.elastic.chronicle import Chronicle as Chronicle
from thinwire.engines.elastic.membership import Roster as Roster
from thinwire.engines.elastic.membership import enter_ as enter_
from thinwire.engines.elastic.membership import settle_ as settle_
from thinwire.engines.elastic.membership import shares as shares
from thinwire.engines.elastic.participant import Departure as Departure
from thinwire.engines.elastic.participant import ElasticHandle as ElasticHandle
from thinwire.engines.elastic.participant import Elasticity as Elasticity
from thinwire.engines.elastic.transaction import Transaction as Transaction
