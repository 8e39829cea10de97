"""The report: records of runs, written line by line, and the one page that shows them."""

from thinwire.report.page import Axis as Axis
from thinwire.report.page import Chart as Chart
from thinwire.report.page import Section as Section
from thinwire.report.page import Series as Series
from thinwire.report.page import lines as lines
from thinwire.report.page import page_text as page_text
from thinwire.report.page import write_page as write_page
from thinwire.report.record_file import Experiment as Experiment
from thinwire.report.record_file import Writer as Writer
from thinwire.report.record_file import one_line_each as one_line_each
from thinwire.report.record_file import read_record as read_record
