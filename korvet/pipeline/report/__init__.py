"""``korvet pipeline report``: lags of groups, and throughput and size of archived topics over time."""

from korvet.pipeline.report.figures import Day as Day
from korvet.pipeline.report.figures import Interval as Interval
from korvet.pipeline.report.figures import Lag as Lag
from korvet.pipeline.report.figures import Report as Report
from korvet.pipeline.report.figures import ReportConfig as ReportConfig
from korvet.pipeline.report.figures import TopicLoss as TopicLoss
from korvet.pipeline.report.figures import Unarchived as Unarchived
from korvet.pipeline.report.figures import UnreadableGroup as UnreadableGroup
from korvet.pipeline.report.making import report as report
from korvet.pipeline.report.making import save as save
from korvet.pipeline.report.page import html_page as html_page
