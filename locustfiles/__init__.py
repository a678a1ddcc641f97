"""Bundled locustfiles: chat, agent, mixed, replay, and tasks with tools."""
