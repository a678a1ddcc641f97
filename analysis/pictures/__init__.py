"""The charts of a report, as plain data that plotly.js draws in the page."""
