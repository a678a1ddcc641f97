"""Studies: collection of runs, tables beside published figures, findings on claims, page."""
