"""Figures: the measured quantities, one row each, and what pages need to name and to format them."""
