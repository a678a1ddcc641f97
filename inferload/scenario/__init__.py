"""The scenario: keys, files, overrides and their checks."""
