"""Answers as bytes, per endpoint: events of a stream or one JSON document. Pure."""
