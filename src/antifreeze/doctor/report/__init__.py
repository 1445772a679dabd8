"""The findings, shown: text, JSON, a page."""
