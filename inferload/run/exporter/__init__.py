"""Prometheus exporter of the master: metrics of the current run, rendered from its totals at each scrape."""
