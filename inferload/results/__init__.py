"""Results of a run: summary, verdict, gates, outcome and their texts; statistics of runs."""
