"""Objects that each run needs. They are made at import, so that forks of the importing process have them already."""

from inferload.deploy.variants import variant

from inferload.base.virtual_orders import simulator
from inferload.client import gateways
from inferload.run.master import run_redaction
from inferload.run.virtual import start

variant.bundled()
simulator()
gateways.named({"x-request-id": "id"})  # compiles patterns
run_redaction._words_of_format()  # reads the schema of a scenario, for runs with a key
start.note_clocks()
