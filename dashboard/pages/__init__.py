"""The pages, in the order of the tabs; a path belongs to the first whose pattern fits it whole."""

from dashboard.page import Page
from dashboard.pages import (
    calibration,
    compare,
    compiler,
    finding,
    findings,
    kernel,
    kernels,
    run,
    runs,
    timeline,
    upload,
)

PAGES: tuple[Page, ...] = (
    runs.PAGE,
    run.PAGE,
    findings.PAGE,
    finding.PAGE,
    kernels.PAGE,
    kernel.PAGE,
    timeline.TIMELINE,
    timeline.OVERLAP,
    compiler.PAGE,
    compare.REGRESSIONS,
    compare.COMPARE,
    calibration.PAGE,
    upload.PAGE,
)

__all__ = ["PAGES"]
