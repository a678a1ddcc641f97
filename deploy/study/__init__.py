"""Studies: questions of published texts, answered by sweeps."""
