"""The quick options of `inferload run`: each overrides one key of the scenario."""

import argparse

NAMES = ("users", "rate", "duration", "sessions", "input_len", "output_len")


def add_to(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add the options as a group and return it. Their values are texts, which the scenario's checks parse."""
    group = parser.add_argument_group("load", "Each option sets one key of the scenario for this run.")
    load = group.add_mutually_exclusive_group()
    load.add_argument("-u", "--users", metavar="N", help="closed loop: number of users")
    load.add_argument("--rate", metavar="R", help="open loop: session starts per second")
    group.add_argument(
        "-t", "--duration", "--run-time", metavar="TIME", help="length of the measure phase, as 60s or 5m"
    )
    group.add_argument(
        "--sessions", metavar="N", help="end after N sessions, or at the end of the measure phase if earlier"
    )
    group.add_argument("--input-len", metavar="N", help="tokens of each new message of the user")
    group.add_argument("--output-len", metavar="N", help="tokens of each answer")
    return group


def settings(arguments: argparse.Namespace) -> list[str]:
    """Return the values of --set, with those of the quick options. Raise UsageError if the scenario rejects one of these."""
    texts = {name: text for name in NAMES if (text := getattr(arguments, name)) is not None}
    if texts:
        from inferload.scenario import overrides  # with all schemas
        from inferload.scenario import scenario as scenarios

        named, scenario = overrides.parse_settings(arguments.set), scenarios.load(arguments.scenario)
        quick = tuple(overrides.QUICK[name](scenario.arrivals, scenario.workload, text) for name, text in texts.items())
        overrides.refuse_overlaps((*named, *quick))
        scenarios.load(arguments.scenario, (*named, *quick))
        return [*arguments.set, *(each.setting for each in quick)]
    return list(arguments.set)
