"""Accuracy and cost of load generators, measured with servers of known times. Run by `make bench`; not part of the package."""
