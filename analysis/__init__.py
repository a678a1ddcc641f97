"""Analysis: reports, diagnosis, comparisons and charts from run directories."""
