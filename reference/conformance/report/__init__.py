"""The report of a run: report.json, report.html, junit.xml and summary.md (docs/report.md)."""
