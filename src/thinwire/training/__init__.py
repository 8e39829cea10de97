"""Training runs: a configuration goes in, a JSON-lines record comes out."""

from thinwire.training.config import RunConfig
from thinwire.training.records import RunRecord, read_records
from thinwire.training.train import train

__all__ = ["RunConfig", "RunRecord", "read_records", "train"]
