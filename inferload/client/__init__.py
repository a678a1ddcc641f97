"""The client: connections with stamped reads, requests and event streams of the endpoints, the record of a turn."""
