"""Workers of a run as its master sees them: set-up, messages, turns, losses."""
