"""When turns are sent: arrivals, profiles and curves of the load."""
