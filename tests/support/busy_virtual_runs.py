"""`inferload.locust.virtual_runs` with a callback that waits on the loop of the forking process."""

import sys

import gevent

from inferload.locust import virtual_runs

if __name__ == "__main__":
    gevent.get_hub().loop.run_callback(list)
    sys.exit(virtual_runs.main())
