"""Figures: the measured quantities, one row each with its formula, and the grammar of gates on them."""
