"""Reports: one self-contained HTML page from one result file, Markdown, and the same pictures as files."""

from .figures import write_figures
from .page import render_report, write_report
from .text_tables import write_markdown

__all__ = ["render_report", "write_report", "write_figures", "write_markdown"]
