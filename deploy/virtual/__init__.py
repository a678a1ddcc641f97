"""Runs on a virtual clock: the sessions of a scenario against the simulator in one process, without sockets or waits."""
