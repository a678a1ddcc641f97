"""Pages and scripts that extend Locust's web UI."""
