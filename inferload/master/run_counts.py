"""Counts of a run at its end, from the master's state."""

from collections.abc import Sequence
from dataclasses import replace

from inferload.client.scrape_http import MetricsUrl
from inferload.master.lifecycle.master_run import MasterRun
from inferload.master.manifest import about, models_of
from inferload.measure.clock import now_ns
from inferload.summarise.counts import Counts, Earlier


def counts_of(run: MasterRun, csv_errors: Sequence[str]) -> Counts:
    """Return the counts of a run; an open phase ends now. `csv_errors`: of Locust's tables."""
    at_ns, preflight, earlier = now_ns(), run.preflight, run.earlier
    scraped = None if run.scraping is None else run.scraping.write_error
    return Counts(
        run=about(run),
        scenario_text=run.spec.scenario.resolved_text(),
        origin=run.spec.origin,
        targets=tuple(target.url for target in run.spec.targets),
        models=tuple(models_of(run.spec, preflight)),
        metrics_targets=tuple(MetricsUrl.parse(url).target for url in preflight.metrics_urls),
        salt=run.salt,
        salts=preflight.salts,
        prompt_exactness=preflight.vocabulary.exactness,
        template=preflight.template,
        data_wire=preflight.data.to_wire(),
        anchor=run.anchor,
        windows=tuple(
            replace(window, end_ns=at_ns if window.end_ns is None else window.end_ns) for window in run.windows
        ),
        workers=tuple(member.ended() for member in run.roster.members),
        complete=run.complete,
        arm=run.arm,
        earlier=None if earlier is None else Earlier(earlier.arm, earlier.run_dir.name),
        inconclusive=run.own.inconclusive,
        policy=run.own.policy,
        early_by=run.early_by,
        others=run.others(),
        write_errors=(*csv_errors, *(error for error in (scraped, run.marks.error) if error is not None)),
        adaptations_left_out=tuple(f"{left.name}: {left.consequence}" for left in run.left_out if left.figures),
        aborted=run.aborted,
        rate_changed=bool(run.steering.rate_changes),
        tallies_wire=run.totals.tallies.to_wire(),
        health_wire=run.totals.health.to_wire(),
        errors_wire=run.totals.errors.to_wire(),
    )
