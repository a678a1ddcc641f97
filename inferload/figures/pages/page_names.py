"""Translation of the names on metrics pages to vLLM 0.32's, by the rows of `page_kinds`. Pure functions."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType

from msgspec.structs import replace

from inferload.figures.pages import metric_names
from inferload.figures.pages.metric_names import split_suffix
from inferload.figures.pages.page_kinds import KIND_OF, KINDS, SIMULATOR, VLLM, Labels, Meaning, PageKind

# Meanings of the names of all kinds. The order decides if a page has several names for one metric.
_MEANINGS = {name: kind.meanings(name) for kind in KINDS for name in kind.meaning if name.startswith(kind.prefixes)}
_OWNERS = {name: kind for kind in reversed(KINDS) for name in kind.meaning if name in _MEANINGS}
# Names as a client library or a collector writes them that knows no colons.
_COLONS = {
    name.replace(":", "_"): name
    for name in (*_MEANINGS, *vars(metric_names).values())
    if isinstance(name, str) and ":" in name.rstrip(":")
}
_RANK = {name: rank for rank, name in enumerate(_MEANINGS)}


RAY = "ray_"  # before the names of a vLLM in Ray Serve, which are on the page of Ray


def kind_of(metrics: Iterable[str]) -> PageKind | None:
    """Return the kind of a page with these metrics; None if it is not known."""
    page = tuple(metrics)
    return next((kind for kind in KINDS if any(name.startswith(kind.prefixes) for name in page)), None)


def is_simulated(metrics: Iterable[str]) -> bool:
    """Return True for the page of the simulator, which no header tells behind a proxy or gateway."""
    return any(name.startswith(SIMULATOR) for name in metrics)


def with_colon(metric: str) -> str:
    """Return the server's own name of a metric whose colon was replaced by `_`; other names are returned unchanged."""
    name = metric.removeprefix(RAY)
    family, suffix = split_suffix(name)
    known = _COLONS.get(name) or _COLONS.get(family, "") + suffix
    return known if ":" in known else metric


def no_known_engine(series: int) -> str:
    """Return the text for a page of an unknown kind."""
    return f"{series:,} series of no known engine"


def meanings_of(metric: str, page: PageKind | None = None) -> tuple[Meaning, ...]:
    """Return what a metric is on a page; an unknown name is its own. The page of a router has no figures of engines."""
    if page is not None and page.kind == "router":
        found = page.meanings(metric) or meanings_of(metric)
        return tuple(meaning for meaning in found if not meaning.metric.startswith("vllm:"))
    if metric in _MEANINGS:
        return _MEANINGS[metric]
    family, suffix = split_suffix(metric)
    found = _MEANINGS.get(family, (Meaning(family),))
    return tuple(replace(meaning, metric=meaning.metric + suffix) for meaning in found)


def page_meanings(metrics: Iterable[str], of: PageKind | None = None) -> Mapping[str, tuple[Meaning, ...]]:
    """Return what each metric of a page is; without meanings that an earlier name of the same kind of page, or in front, has.

    `of`: kind of the page, if these are not all of its metrics.
    """
    return _page_meanings(frozenset(metrics), of and of.key)


@lru_cache(maxsize=256)  # pages, each scraped again and again
def _page_meanings(page: frozenset[str], key: str | None) -> Mapping[str, tuple[Meaning, ...]]:
    meanings: dict[str, tuple[Meaning, ...]] = {}
    taken: dict[tuple[str, Labels], PageKind] = {}
    kind = kind_of(page) if key is None else KIND_OF[key]
    for metric in sorted(page, key=lambda metric: (_rank(metric), metric)):
        found = [
            meaning
            for meaning in meanings_of(metric, kind)
            if _side_by_side(taken.get((meaning.metric, meaning.added)), owner(metric))
            and page.issuperset(meaning.beside)
            and meaning.unless not in page
        ]
        meanings[metric] = tuple(found)
        taken = {(meaning.metric, meaning.added): owner(metric) for meaning in found} | taken
    return MappingProxyType(meanings)


def owner(metric: str) -> PageKind:
    """Return the kind of page that has a name."""
    return _OWNERS.get(metric) or _OWNERS.get(split_suffix(metric)[0], VLLM)


def _side_by_side(first: PageKind | None, other: PageKind) -> bool:
    """Return True if names of one metric are of different engines or devices, as on the page of a collector."""
    return first is None or (first is not other and not first.in_front and not other.in_front)


def _rank(metric: str) -> int:
    return _RANK.get(metric, _RANK.get(split_suffix(metric)[0], -1))


def names_on_pages(metrics: Iterable[str]) -> frozenset[str]:
    """Return all names on pages of metrics with vLLM 0.32's names."""
    wanted = set(metrics)
    families = {split_suffix(metric) for metric in wanted}
    found: set[str] = set()
    for name, meanings in _MEANINGS.items():
        of = {meaning.metric for meaning in meanings}
        if of & wanted:
            found.add(name)
        found |= {name + suffix for family, suffix in families if family in of}
    return frozenset(wanted | found)
