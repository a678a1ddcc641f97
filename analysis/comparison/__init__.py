"""Comparison of configurations: sides, tests, costs, recommendations."""
