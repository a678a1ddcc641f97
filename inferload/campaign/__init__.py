"""Campaigns: many runs with one journal, which can be resumed. Used by search, sweep and calibrate."""
