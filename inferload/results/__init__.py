"""A run directory's summary. Neither Locust nor pandas is imported here."""
