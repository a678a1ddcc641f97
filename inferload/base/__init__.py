"""Base: errors, numbers, texts, clock, options, and the files of a run directory."""
