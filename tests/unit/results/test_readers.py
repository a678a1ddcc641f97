"""The readers of the sockets of a run in words, for workers and targets that differ."""

from hypothesis import given
from hypothesis import strategies as st

from inferload.results import readers
from inferload.turns.socket_reader import SocketReader

NATIVE = SocketReader(target="http://a", reader="native")
TLS = SocketReader(target="https://b", reader="python", why="TLS")
OLD = SocketReader(target="http://a", reader="python", why="the extension is not compiled", remedy="install a compiler")
KINDS = [
    ("native", "", ""),
    ("python", "TLS", ""),
    ("python", "not compiled", "install"),
    ("python", "V=python", "unset V"),
]


def text(*workers: list[SocketReader]) -> str:
    return readers.text(readers.uses_of(workers))


def test_one_reader_is_named_with_its_reason() -> None:
    assert text() == text([]) == ""
    assert text([NATIVE], [NATIVE]) == "native"
    assert text([TLS]) == "python (TLS)"


def test_readers_that_differ_name_their_targets_or_workers() -> None:
    assert text([NATIVE, TLS]) == "native for http://a; python (TLS) for https://b"
    assert text([NATIVE], [NATIVE], [OLD]) == "native in 2 workers; python (the extension is not compiled) in 1 worker"


def test_advice_is_given_once_where_the_compiled_reader_could_be_used() -> None:
    assert readers.advice(readers.uses_of([[NATIVE, TLS]])) == []
    (sentence,) = readers.advice(readers.uses_of([[OLD], [OLD]]))
    assert sentence.endswith("because the extension is not compiled: install a compiler")


@given(
    st.lists(
        st.dictionaries(st.sampled_from(["http://a", "http://b", "https://c"]), st.sampled_from(KINDS), min_size=1),
        min_size=1,
        max_size=5,
    )
)
def test_every_reader_and_reason_of_any_run_is_named(run: list[dict[str, tuple[str, str, str]]]) -> None:
    workers = [
        [SocketReader(target=target, reader=kind[0], why=kind[1], remedy=kind[2]) for target, kind in worker.items()]
        for worker in run
    ]
    uses = readers.uses_of(workers)
    kinds = {kind for worker in run for kind in worker.values()}
    assert {(use.reader, use.why, use.remedy) for use in uses} == kinds
    for use in uses:
        of = [worker for worker in run if (use.reader, use.why, use.remedy) in worker.values()]
        assert use.workers == len(of)
    named = readers.text(uses)
    assert all((f"{reader} ({why})" if why else reader) in named for reader, why, _ in kinds)
    names = {reader for reader, _, _ in kinds}
    assert readers.common(uses) == (names.pop() if len(names) == 1 else "mixed")
    assert len(readers.advice(uses)) == len([remedy for _, _, remedy in kinds if remedy])
