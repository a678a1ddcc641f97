"""A study of two short runs a side, for `inferload study` on the virtual clock."""

STUDY = """\
schema: 1
name: small
title: A small study
question: Does a queue show in TTFT?
source: {title: a text, date: 2026-01-01, setting: one run}
parts:
  only:
    title: The only part
    baseline: tiny-all
    variants: [tiny-seqs-1]
    scenarios: [{scenario: smoke, name: load, set: ["arrivals.users=6", "phases.warmup_s=0"]}]
    pairs: 3
    measure_s: 2
    restart: once
    reports: false
    engines:
      simulator: {sweep: {clock: virtual}}
    quick: {pairs: 1}
tables:
  - key: t
    title: Table
    part: only
    base: many
    figures: [mean(ttft_ms), max(requests_waiting)]
    rows: [{label: many, published: [10, null]}, {label: one, variant: tiny-seqs-1, published: [20, null]}]
claims:
  - {text: It does, table: t, row: one, figure: mean(ttft_ms), expect: higher, why: {holds: requests wait, fails: none do}}
"""
