"""Experiments as code: a configuration goes in, a JSON-lines record comes out."""

from thinwire.experiments.config import RunConfig
from thinwire.experiments.records import RunRecord, read_records
from thinwire.experiments.train import train

__all__ = ["RunConfig", "RunRecord", "read_records", "train"]
