"""Network policies of Kubernetes: which connections between pods they allow.

https://kubernetes.io/docs/concepts/services-networking/network-policies/
"""

import ipaddress
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Labels = Mapping[str, str]
Port = tuple[str, int]  # protocol and number
_NAMESPACE = "kubernetes.io/metadata.name"


@dataclass(frozen=True, slots=True)
class Peer:
    """A pod at an address."""

    address: str
    namespace: str
    labels: Labels
    name: str = ""


def selects(selector: Mapping[str, Any], labels: Labels) -> bool:
    """Return True if a selector matches labels. An empty one matches all."""
    for term in selector.get("matchExpressions", ()):
        assert term["operator"] == "In", term
        if labels.get(term["key"]) not in term["values"]:
            return False
    return selector.get("matchLabels", {}).items() <= labels.items()


def allowed(policies: Sequence[Any], source: Peer, target: Peer, port: Port) -> bool:
    """Return True if the source may connect to a port of the target: both sides must allow it."""
    ways = (("Egress", source, target), ("Ingress", target, source))
    return all(_allows(policies, way, own, other, port) for way, own, other in ways)


def _allows(policies: Sequence[Any], way: str, own: Peer, other: Peer, port: Port) -> bool:
    """Return True if the policies of a pod allow a way; without policies for it, all is allowed."""
    applying = [each for each in policies if _applies(each, way, own)]
    rules = (rule for each in applying for rule in each["spec"].get(way.lower()) or ())
    return not applying or any(_permits(rule, way, own, other, port) for rule in rules)


def _applies(policy: Any, way: str, pod: Peer) -> bool:
    spec = policy["spec"]
    is_here = policy["metadata"]["namespace"] == pod.namespace
    return is_here and way in spec["policyTypes"] and selects(spec["podSelector"], pod.labels)


def _permits(rule: Any, way: str, own: Peer, other: Peer, port: Port) -> bool:
    ports = rule.get("ports")
    if ports and not any((each["protocol"], each["port"]) == port for each in ports):
        return False
    peers = rule.get("to" if way == "Egress" else "from")
    return not peers or any(all(_matches(peer, own, other)) for peer in peers)


def _matches(peer: Any, own: Peer, other: Peer) -> Iterator[bool]:
    if "ipBlock" in peer:
        yield ipaddress.ip_address(other.address) in ipaddress.ip_network(peer["ipBlock"]["cidr"])
        return
    if "namespaceSelector" in peer:
        yield selects(peer["namespaceSelector"], {_NAMESPACE: other.namespace})
    else:
        yield own.namespace == other.namespace
    yield selects(peer.get("podSelector", {}), other.labels)
