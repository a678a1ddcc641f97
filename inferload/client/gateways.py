"""Names of gateways, proxies and routers, from the headers of answers. Many send no header that identifies them."""

import re
from collections.abc import Mapping

# Name, header (a prefix if it ends in -) and a pattern to search for in its value; `%` stands for an optional version.
_NAMED_BY = (
    ("nginx", "server", "^nginx%"),
    ("OpenResty", "server", "^openresty%"),
    ("APISIX", "server", "^apisix%"),
    ("Kong", "server", "^kong%"),
    ("Caddy", "server", "^caddy%"),
    ("HAProxy", "server", "^haproxy%"),
    ("Traefik", "server", "^traefik%"),
    ("Istio", "server", "^istio-envoy"),
    ("Envoy", "server", "^envoy%"),
    ("Cloudflare", "server", "^cloudflare"),
    ("AWS load balancer", "server", "^awselb%"),
    ("AWS load balancer", "set-cookie", "^awsalb"),
    ("Azure Application Gateway", "server", "^microsoft-azure-application-gateway%"),
    ("Google Front End", "server", "^(?:gws|gfe|google frontend)"),
    ("Akamai", "server", "^akamaighost"),
    ("LiteLLM", "x-litellm-version", "^%"),
    ("LiteLLM", "x-litellm-", ""),
    ("Kong", "x-kong-", ""),
    ("Envoy", "x-envoy-", ""),
    ("Portkey", "x-portkey-", ""),
    ("Bifrost", "x-bifrost-", ""),
    ("Helicone", "helicone-", ""),
    ("One API", "x-oneapi-", ""),
    ("vllm-router", "x-vllm-router-", ""),
    ("sglang-router", "x-smg-", ""),
    # These generate request IDs of one form, with a prefix by path.
    ("a router of SGLang or vLLM", "x-request-id", "^(?:req|chatcmpl|cmpl|resp|gnt)-[a-z0-9]{24}$"),
    ("Inference Gateway", "x-gateway-destination-endpoint-", ""),
    ("Cloudflare", "cf-ray", ""),
    ("Cloudflare AI Gateway", "cf-aig-", ""),
    ("Fastly", "x-served-by", "^cache-"),
    ("Varnish", "x-varnish", ""),
    ("Azure API Management", "apim-request-id", ""),
    ("Azure Front Door", "x-azure-ref", ""),
    ("Amazon API Gateway", "x-amz-apigw-id", ""),
    ("Amazon CloudFront", "x-amz-cf-id", ""),
    ("an AWS service", "x-amzn-", ""),
)
_VERSION = r"(?:[/ ]?v?(?P<version>\d[\w.-]*))?"
# Protocol, which old versions of Kong leave out, host, and the product in a comment, which says more than the host.
_VIA = re.compile(r"(?:^|,)\s*(?:(?:[\w.]+/)?[\d.]+\s+)?([^\s,;()]+)(?:\(\w+\))?(?:\s+\(([^()\s]+)[^()]*\))?")


def named(headers: Mapping[str, str]) -> str:
    """Return the gateways that the headers of an answer identify, with versions; "" for none. Header names are in lower case."""
    found: dict[str, str] = {}
    for name, header, pattern in _NAMED_BY:
        for other, value in headers.items():
            of = other == header or (header.endswith("-") and other.startswith(header))
            if of and (match := re.search(pattern.replace("%", _VERSION), value, re.IGNORECASE)):
                found[name] = found.get(name) or match.groupdict().get("version") or ""
    for host, product in _VIA.findall(headers.get("via", "")):
        name, _, version = (product or host).partition("/")
        known = next(
            (each for each in found if each.lower() in name.lower() or name.lower() in each.lower().split()), name
        )
        found[known] = found.get(known) or version
    if len(found) > 1:
        found.pop("an AWS service", None)
    if "Istio" in found:
        found.pop("Envoy", None)
    return ", ".join(f"{name} {version}".strip() for name, version in found.items())
