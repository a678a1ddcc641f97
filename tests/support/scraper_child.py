"""Program that scrapes as the scraper process of a run, in a process without gevent: `python -m scraper_child --out FOLDER ...`."""

import argparse
import os
import signal
from pathlib import Path

from inferload.base.clock import Anchor
from inferload.base.redaction import Redaction
from inferload.base.run_options import TLS_OPTIONS, add_options
from inferload.base.tls import TlsSettings
from inferload.servers import scraper, scraping

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path)
    parser.add_argument("--interval-s", type=float)
    parser.add_argument("--target", action="append")
    add_options(parser, TLS_OPTIONS)
    parsed = parser.parse_args()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    key = os.environ.get("OPENAI_API_KEY")
    clients = scraper.clients_of(parsed.target, TlsSettings.of(parsed), key)
    job = scraper.ScrapeJob(clients, parsed.interval_s, parsed.out, Anchor.take())
    scraping.scrape_for_parent(job, Redaction.of(key, ()))
