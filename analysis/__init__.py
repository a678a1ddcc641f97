"""Analysis: reports, diagnosis, comparisons and charts from run directories; the only code with pandas and plotly."""
