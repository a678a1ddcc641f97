"""Requests and answers of all endpoints: each row of `ENDPOINTS` has a module of its name beside this one, with a `DIALECT`."""

from inferload.base.on_use import OnUse
from inferload.client.endpoints.dialect import Dialect
from inferload.scenario.schema.endpoints import ENDPOINTS

DIALECTS = OnUse[Dialect]({name: f"inferload.client.endpoints.{name}:DIALECT" for name in ENDPOINTS})
