"""The HTTP server: event loop, connections, routes, and its log."""
