"""Gateways, proxies and routers by the headers of their answers: a row each. Many name themselves in none."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

_VERSION = r"(?:[/ ](v?\d[\w.-]*))?"


@dataclass(frozen=True, slots=True)
class NamedBy:
    """Row: name, header (a prefix if it ends in -) and a pattern within its value, whose group is the version."""

    name: str
    header: str
    pattern: str = ""

    def version(self, headers: Mapping[str, str]) -> str | None:
        """Return the version, "" if it is not named; None if the headers are not of this gateway."""
        for header, value in headers.items():
            if header == self.header or (self.header.endswith("-") and header.startswith(self.header)):
                found = re.search(self.pattern, value, re.IGNORECASE)
                if found is not None:
                    return next((group for group in found.groups() if group), "")
        return None


def _by_server(name: str, word: str) -> NamedBy:
    return NamedBy(name, "server", rf"^{word}{_VERSION}")


NAMED_BY = (
    _by_server("nginx", "nginx"),
    _by_server("OpenResty", "openresty"),
    _by_server("APISIX", "apisix"),
    _by_server("Kong", "kong"),
    _by_server("Caddy", "caddy"),
    _by_server("HAProxy", "haproxy"),
    _by_server("Traefik", "traefik"),
    _by_server("Istio", "istio-envoy"),
    _by_server("Envoy", "envoy"),
    _by_server("Cloudflare", "cloudflare"),
    _by_server("AWS load balancer", "awselb"),
    _by_server("Azure Application Gateway", "microsoft-azure-application-gateway"),
    _by_server("Google Front End", "(?:gws|google frontend|gfe)"),
    _by_server("Akamai", "akamaighost"),
    _by_server("Portkey", "portkey"),
    NamedBy("LiteLLM", "x-litellm-version", r"^(\d[\w.-]*)$"),
    NamedBy("LiteLLM", "x-litellm-"),
    NamedBy("Kong", "x-kong-"),
    NamedBy("Envoy", "x-envoy-"),
    NamedBy("Portkey", "x-portkey-"),
    NamedBy("Helicone", "helicone-"),
    NamedBy("One API", "x-oneapi-"),
    NamedBy("vllm-router", "x-vllm-router-"),
    NamedBy("sglang-router", "x-smg-"),
    NamedBy("a router of SGLang or vLLM", "x-request-id", r"^req-[A-Za-z0-9]{24}$"),  # as both number requests
    NamedBy("Inference Gateway", "x-gateway-destination-endpoint-"),
    NamedBy("Cloudflare", "cf-ray"),
    NamedBy("Fastly", "x-served-by", "^cache-"),
    NamedBy("Varnish", "x-varnish"),
    NamedBy("Azure API Management", "apim-request-id"),
    NamedBy("Azure Front Door", "x-azure-ref"),
    NamedBy("Amazon API Gateway", "x-amz-apigw-id"),
    NamedBy("Amazon CloudFront", "x-amz-cf-id"),
    NamedBy("an AWS service", "x-amzn-"),
)
_VIA = re.compile(r"(?:^|,)\s*(?:[\w.]+/)?[\d.]+\s+([^\s,;()]+)")


def named(headers: Mapping[str, str]) -> str:
    """Return what is between by the headers of an answer (names in lower case), with versions; "" if nothing is named."""
    found: dict[str, str] = {}
    for row in NAMED_BY:
        version = row.version(headers)
        if version is not None:
            found[row.name] = found.get(row.name) or version
    for via in _VIA.findall(headers.get("via", "")):
        name, _, version = via.partition("/")
        known = next((known for known in found if known.lower() == name.lower()), name)
        found[known] = found.get(known) or version
    if len(found) > 1:
        found.pop("an AWS service", None)
    return ", ".join(f"{name} {version}".strip() for name, version in found.items())
