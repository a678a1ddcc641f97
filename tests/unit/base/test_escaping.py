"""Escaping of foreign text for each output, and redaction of secrets."""

import json
import unicodedata
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt  # a dependency of rich

from inferload.base.errors import UsageError
from inferload.base.escaping import code_span, escaped, escaped_lines, indented, mapped, markdown
from inferload.base.redaction import LEAST, Redaction, without_userinfo
from inferload.client.connection.target import Target
from inferload.run.process.trace_export import TraceExport
from inferload.servers.scrape_http import MetricsUrl

KEY_SIGNS = "".join(chr(code) for code in range(33, 127))
KEYS = st.text(KEY_SIGNS, min_size=LEAST, max_size=60)
UNSAFE = "\x00\x07\x1b\x7f\x9b\r\n\t\u2028\u2029\u202e\u2066\u200f\ufeff\ud800"


def parts_of(key: str) -> set[str]:
    return {key[at : at + LEAST] for at in range(len(key) - LEAST + 1)}


@given(st.text() | st.text(UNSAFE + "ab|`"))
def test_an_escaped_text_is_one_line_without_controls(text: str) -> None:
    shown = escaped(text)
    assert not any(unicodedata.category(sign) in ("Cc", "Cs", "Zl", "Zp") for sign in shown)
    assert not set(UNSAFE) & set(shown)
    assert len(shown.splitlines()) <= 1
    assert escaped(shown) == shown
    shown.encode()


@given(st.text(st.characters(exclude_characters=UNSAFE, categories=("L", "N", "P", "S", "Zs"))))
def test_printable_text_is_unchanged(text: str) -> None:
    assert escaped(text) == escaped_lines(text) == text


@given(st.characters(exclude_characters="\n\t"))
def test_lines_escape_the_same_characters(sign: str) -> None:
    assert escaped_lines(sign) == escaped(sign)


def test_escapes_of_each_kind_of_character() -> None:
    assert escaped("a\x1b[31m\r\nb\u202e\x9b") == "a\\x1b[31m\\r\\nb\\u202e\\u009b"
    assert escaped_lines("a\n\tb\x1b") == "a\n\tb\\x1b"
    assert indented("a\n[2026] fake/ERROR: b") == "a\n    [2026] fake/ERROR: b"


@given(st.text())
def test_escaped_json_has_the_same_value(text: str) -> None:
    assert json.loads(escaped_lines(json.dumps([text], ensure_ascii=False))) == [text]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a|b", "a\\|b"),
        ("a\\|b", "a\\\\\\|b"),
        ("`x`", "\\`x\\`"),
        ("<script>", "\\<script>"),
        ("</td>", "\\</td>"),
        ("p < 0.001", "p < 0.001"),
        ("![i](http://t/x.png)", "!\\[i\\](http://t/x.png)"),
        ("&lt;b>", "\\&lt;b>"),
        ("a\n# b", "a\\\\n# b"),
        ("ttft_ms and *this*", "ttft_ms and \\*this\\*"),
        ("# b", "\\# b"),
        ("12. b", "12\\. b"),
        ("-0.5", "-0.5"),
        ("57.7 ~ (1 to 2)", "57.7 ~ (1 to 2)"),
    ],
)
def test_markdown_shows_text_literally(text: str, shown: str) -> None:
    assert markdown(text) == shown


@given(st.text("a1 #-+*>=_.)(|`~$<>[]!&;:/\\\"'\n\t"), st.sampled_from(["", "* ", "> ", "**", "| h |\n|---|\n| "]))
def test_a_markdown_parser_finds_only_text(text: str, before: str) -> None:
    strong = before if before == "**" and text.strip() else ""
    before = before if before != "**" else strong
    tokens = MarkdownIt("commonmark").enable(["table", "strikethrough"]).parse(before + markdown(text) + strong)
    blocks = {"paragraph", "list_item", "bullet_list", "blockquote", "table", "thead", "tbody", "tr", "th", "td"}
    assert {token.type.rpartition("_")[0] for token in tokens if token.type != "inline"} <= blocks
    inline = [token for token in tokens if token.type == "inline" and token.content != "h"]
    children = [child for token in inline for child in token.children or ()]
    assert {child.type for child in children} <= {"text", "text_special", "strong_open", "strong_close"}
    assert "".join(child.content for child in children).strip() == escaped(text).strip()


@given(st.text("`|ab \\\n"))
def test_a_code_span_contains_its_text(text: str) -> None:
    shown = code_span(text)
    fence = len(shown) - len(shown.lstrip("`"))
    assert shown.endswith("`" * fence)
    inner = shown[fence:-fence]
    assert "`" * fence not in inner.replace("`" * (fence + 1), "")
    assert "\n" not in shown
    assert "|" not in inner.replace("\\|", "")


def test_every_text_of_a_document_is_mapped() -> None:
    assert mapped({"a": ["b", 1, None, {"c": ("d",)}]}, str.upper) == {"A": ["B", 1, None, {"C": ["D"]}]}


@given(
    KEYS, st.text(max_size=40), st.text(max_size=40), st.tuples(st.integers(0, 60), st.integers(0, 140)), st.booleans()
)
def test_no_part_of_a_key_remains_after_a_cut(
    key: str, before: str, after: str, cut: tuple[int, int], lower: bool
) -> None:
    begin, length = cut
    body = (before + key + after + key)[begin:]
    shown = Redaction([key])((body.lower() if lower else body)[:length])
    assert not any(part in shown for part in parts_of(key))
    assert not any(part in shown.lower() for part in parts_of(key.lower()))
    cut_later = Redaction([key])(body)[:length]
    assert not any(part in cut_later for part in parts_of(key))


@given(KEYS, st.integers(LEAST, 60))
def test_a_key_is_removed_and_other_text_stays(key: str, length: int) -> None:
    assert Redaction([key])(f"\u00e4\u00f6 {key[:length]} \u00fc") == "\u00e4\u00f6 *** \u00fc"


def test_a_key_reassembled_by_redaction_is_removed() -> None:
    key = "abcd***efgh"
    assert not any(part in Redaction([key])("abcd" + key + "efgh") for part in parts_of(key))


def test_short_secrets_are_removed_only_as_words() -> None:
    redact = Redaction(["none", "a"])
    assert redact("key none: none-such, a, banana") == "key ***: none-such, ***, banana"
    assert redact.document({"isolate": "none"}) == {"isolate": "none"}


def test_values_of_private_headers_are_redacted() -> None:
    redact = Redaction.of(
        None, (("X-Api-Key", "hdr-secret-1"), ("authorization", "Basic dXNlcjpwdw=="), ("User-Agent", "inferload"))
    )
    assert redact("got hdr-secret-1 and dXNlcjpwdw==, inferload") == "got *** and ***, inferload"


def test_long_values_of_the_targets_query_are_redacted() -> None:
    redact = Redaction.of(None, (), "api-version=2024-10-21&code=sekret%20value&n=1")
    assert redact("1: sekret value, sekret%20value, 2024-10-21") == "1: ***, ***, 2024-10-21"


def test_passwords_in_urls_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:pr%20oxy-password@proxy:3128")
    redact = Redaction.of(None, ())
    assert redact("proxy said: pr oxy-password") == "proxy said: ***"
    assert redact("no connection to http://user:pw@host:8000/v1") == "no connection to http://***@host:8000/v1"
    assert redact("http://host/a@b") == "http://host/a@b"
    assert redact("GET 'https://host/m?key=abc&x#y': 404?") == "GET 'https://host/m?key=***&***&***': 404?"
    assert redact.document({"target": "http://u:p@h"}) == {"target": "http://***@h"}


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://user:pw@host:1", "http://***@host:1"),
        ("user:pw@host", "***@host"),
        ("http://user:p/w@host", "http://***@host"),
        ("ftp://u:p@q@host", "ftp://***@host"),
        ("http://host:1", "http://host:1"),
        ("http://host:1/m?key=a&b=", "http://host:1/m?key=***&b=***"),
        ("host?secret#x=1", "host?***&x=***"),
        ("http://host/#key=a", "http://host/#key=***"),
        ("http://host?api-version=2024-10-21&code=a", "http://host?api-version=2024-10-21&code=***"),
    ],
)
def test_urls_are_shown_without_user_password_and_query(url: str, shown: str) -> None:
    assert without_userinfo(url) == shown


@pytest.mark.parametrize("parse", [Target.parse, MetricsUrl.parse, lambda url: TraceExport.parse(url, "")])
@pytest.mark.parametrize(
    "url",
    [
        "ftp://host/m?key=secret-1",
        "host:1?key=secret-1",
        "http://[host?key=secret-1",
        "http://host:port?key=secret-1",
        "http://u:secret-1@?key=secret-1",
    ],
)
def test_an_error_on_a_url_shows_no_secret(parse: Callable[[str], object], url: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(url)
    assert "secret-1" not in str(caught.value)


def test_a_metrics_page_is_named_without_the_values_of_its_query() -> None:
    page = MetricsUrl.parse("http://host:9090/federate?match[]=up&key=secret-1")
    assert page.path == "/federate?match[]=up&key=secret-1"
    assert page.target == "http://host:9090/federate?match[]=***&key=***"
