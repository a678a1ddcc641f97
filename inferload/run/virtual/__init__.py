"""Virtual clock of a run: an event loop that jumps to its next timer, and a simulated server in memory."""
