"""The report: records of runs, written line by line, and the one page that shows them."""

from thinwire.report.page import Axis, Chart, Section, Series, lines, page_text, write_page
from thinwire.report.record_file import Experiment, Writer, one_line_each, read_record

__all__ = [
    "Axis",
    "Chart",
    "Experiment",
    "Section",
    "Series",
    "Writer",
    "lines",
    "one_line_each",
    "page_text",
    "read_record",
    "write_page",
]
