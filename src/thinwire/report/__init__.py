"""The report: records in, one self-contained HTML page out."""

from thinwire.report.page import write_page

__all__ = ["write_page"]
