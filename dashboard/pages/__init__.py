"""The pages, in the order of the tabs; a path belongs to the first whose pattern fits it whole."""

from dashboard.page import Page
from dashboard.pages import finding, findings, run, runs

PAGES: tuple[Page, ...] = (runs.PAGE, run.PAGE, findings.PAGE, finding.PAGE)

__all__ = ["PAGES"]
