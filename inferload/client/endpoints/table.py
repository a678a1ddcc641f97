"""Requests and answers of all endpoints: each row of `ENDPOINTS` has a module of its name beside this one, with a `DIALECT`."""

from collections.abc import Mapping
from importlib import import_module

from inferload.client.endpoints.dialect import Dialect
from inferload.scenario.schema.endpoints import ENDPOINTS

DIALECTS: Mapping[str, Dialect] = {
    name: import_module(f"inferload.client.endpoints.{name}").DIALECT for name in ENDPOINTS
}
