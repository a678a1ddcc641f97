"""Limits on figures: gates, conditions that end a run, the SLO, and their grammar."""
