"""What statuses say about gateways, redirects and TLS, whatever the body around the text is."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inferload.base.http_status import expects_tls, is_of_gateway, readable, status_text

# Error pages as each software sends them.
NGINX = (
    "<html>\r\n<head><title>{0}</title></head>\r\n<body>\r\n<center><h1>{0}</h1></center>\r\n"
    "<hr><center>nginx/1.22.1</center>\r\n</body>\r\n</html>\r\n"
)
HAPROXY = "<html><body><h1>{0}</h1>\nThe server didn't respond in time.\n</body></html>\n"
PAGES = [
    NGINX,
    HAPROXY,
    "<!DOCTYPE html><style>h1 {{ color: red }}</style><script>a < 1</script><!-- v2 --><h1>{0}</h1>",
    "<h1>{0}",
    "{0}",
    "",
]
HTTPS_PORTS = [
    "The plain HTTP request was sent to HTTPS port",  # nginx, load balancers
    "Client sent an HTTP request to an HTTPS server.",  # Go
    "Reason: You're speaking plain HTTP to an SSL-enabled server port.",  # Apache
    "Bad Request\nThis combination of host and port requires TLS.",  # Tomcat
    "The client sent a plain HTTP request, but this server only speaks HTTPS on this port.",  # Cheroot
]
WORDS = st.text("abc <>&;/{}\"'\n", max_size=30)
PAGE = st.sampled_from(PAGES)


@given(page=PAGE, status=st.sampled_from([502, 503, 504, 520, 521, 522, 523, 524]))
def test_a_status_of_a_gateway_says_so(page: str, status: int) -> None:
    body = page.format("Oh")
    assert is_of_gateway(status, body)
    text = status_text(status, body=body)
    assert text.startswith(f"HTTP {status}, ")
    assert "gateway" in text
    assert ("time limit" in text) == (status in (504, 524))


@given(page=PAGE, status=st.integers(200, 599).filter(lambda status: not (502 <= status <= 504 or status >= 520)))
def test_another_status_says_nothing_about_a_gateway(page: str, status: int) -> None:
    assert not is_of_gateway(status, page.format("Oh"))
    assert status_text(status, body=page.format("Oh")) == f"HTTP {status}"


@given(st.dictionaries(WORDS, WORDS) | st.lists(WORDS), st.sampled_from(["", " ", "\r\n"]))
def test_a_server_describes_its_own_state_in_json(document: object, before: str) -> None:
    assert not is_of_gateway(503, before + json.dumps(document))


@given(
    page=PAGE.filter(bool),
    text=st.sampled_from(HTTPS_PORTS),
    upper=st.booleans(),
    status=st.sampled_from([400, 404, 502]),
)
def test_plain_http_to_a_port_of_https_is_known(page: str, text: str, upper: bool, status: int) -> None:
    body = page.format(text.upper() if upper else text)
    assert expects_tls(status, body) == (status == 400)
    assert (status_text(status, body=body) == "HTTP 400, the port expects TLS") == (status == 400)
    assert not (status == 400 and is_of_gateway(status, body))


@given(WORDS)
def test_other_refusals_have_nothing_to_do_with_tls(text: str) -> None:
    assert not expects_tls(400, text)


@given(st.sampled_from([301, 302, 303, 307, 308]), st.sampled_from(["https://a.test/v1/models", "/login?next=%2Fv1"]))
def test_a_redirect_names_its_address(status: int, place: str) -> None:
    assert status_text(status, place, "<html>moved</html>") == f"HTTP {status} to {place}"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (NGINX.format("502 Bad Gateway"), "502 Bad Gateway; nginx/1.22.1"),
        (HAPROXY.format("504 Gateway Time-out"), "504 Gateway Time-out; The server didn't respond in time."),
        (PAGES[2].format("Oh &amp; no"), "Oh & no"),
        ("  plain text\n", "plain text"),
        ('{"error": "<b>"}', '{"error": "<b>"}'),
        ("<>", "<>"),
    ],
)
def test_an_error_page_is_readable(body: str, text: str) -> None:
    assert readable(body) == text


@given(WORDS)
def test_no_body_is_lost_and_pages_are_one_line(body: str) -> None:
    text = readable(body)
    assert bool(text) == bool(body.strip())
    assert not body.strip().startswith("<") or text == body.strip() or "\n" not in text
