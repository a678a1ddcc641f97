"""Servers: scrapes of metrics pages, figures of a window of them, rules for bottlenecks."""
