"""The version of this source: the one place where it is written; the package's metadata is made from it."""

__version__ = "0.1.0"
