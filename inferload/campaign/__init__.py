"""Campaigns: many runs with one journal, which can be resumed; search, calibration, checks of a machine."""
