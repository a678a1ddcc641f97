"""Campaigns: many runs with one journal, which can be resumed; sweeps, studies, search, calibration, checks of a machine."""
