"""The report: one HTML page that answers what the runs of a store say about the paper's claims."""

from splash_units.lab.report.page import render

__all__ = ["render"]
