"""What every run makes: forks of a process that has imported this module have it."""

from inferload.deploy.variants import variant

from inferload.base.virtual_orders import simulator
from inferload.client import gateways
from inferload.run.virtual import start

variant.bundled()
simulator()
gateways.named({"x-request-id": "id"})  # compiles patterns
start.note_clocks()
