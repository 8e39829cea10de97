"""What `auto` decides, and by what: plain arithmetic on numbers that all ranks have in common.

`Pilot` tries the ways that are plausible, keeps the fastest and notices when that is over; `recommended` names the rule
for an optimizer. How steps are timed and buckets exchanged is `engines.ddp.autopilot`'s.
"""

from thinwire.engines.auto.modes import BucketFacts as BucketFacts
from thinwire.engines.auto.modes import Mode as Mode
from thinwire.engines.auto.modes import Plan as Plan
from thinwire.engines.auto.modes import Probe as Probe
from thinwire.engines.auto.modes import Report as Report
from thinwire.engines.auto.modes import Tell as Tell
from thinwire.engines.auto.pilot import Pilot as Pilot
from thinwire.engines.auto.recommended import recommended as recommended
