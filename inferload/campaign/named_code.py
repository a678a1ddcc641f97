"""Python code that the plan of a campaign names: a folder may come from anywhere, so that --resume alone does not execute it."""

from collections.abc import Sequence
from pathlib import Path

from inferload.base.errors import UsageError
from inferload.scenario.scenario import Scenario

_LOCUST_CODE = ("-f", "--locustfile", "--config")  # options of Locust that name code, or a file that does


def check(folder: Path, scenario: Scenario, stored: str, given: str | None) -> None:
    """Raise UsageError for live agents in a stored scenario, unless --scenario of the command line (`given`) is that `stored`."""
    if scenario.own_agents and given != stored:
        agents = ", ".join(scenario.own_agents)
        raise UsageError(
            f"--resume {folder}: scenario {stored} executes Python code ({agents}); if it is yours, confirm it with "
            f"--scenario {stored}"
        )


def needed_again(scenario: Scenario, stored: str, headers: Sequence[str] = (), extra: Sequence[str] = ()) -> list[str]:
    """Return the options that `--resume` needs again. `headers`: names of those whose values are not stored."""
    words = ["--scenario", stored] if scenario.own_agents else []
    words += [word for name in headers for word in ("--header", f"{name}: ...")]
    return words + (["--", *extra] if _names_code(extra) else [])


def check_locust_options(folder: Path, stored: Sequence[str], given: Sequence[str]) -> None:
    """Raise UsageError for stored options of Locust that name code, unless the command line has the same ones."""
    if _names_code(stored) and tuple(given) != tuple(stored):
        raise UsageError(
            f"--resume {folder}: its options of Locust name code ({' '.join(stored)}); if it is yours, confirm it with the same "
            "options after --"
        )


def _names_code(words: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in _LOCUST_CODE or _short(word) for word in words)


def _short(word: str) -> bool:
    """Return True for -fFILE, and for an abbreviation of an option that names code."""
    abbreviated = len(word) > 2 and any(option.startswith(word.partition("=")[0]) for option in _LOCUST_CODE)
    return abbreviated or (word.startswith("-f") and not word.startswith("--"))
