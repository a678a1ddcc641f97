"""Comparison of configurations: sides, tests, the best by goal, costs."""
