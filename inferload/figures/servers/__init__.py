"""Figures of servers, one row each with its formula over a window."""
