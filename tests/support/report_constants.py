"""Constants of all reports, which the fork server makes by importing this: compiled templates, packed chart library, decoders."""

import msgspec
from inferload.analysis.pages import shell

from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Summary

shell.packed_plotly()
for kind in ("html", "md"):
    templates = shell.environment(escape=kind == "html")
    for name in templates.list_templates():
        if name.endswith((f".{kind}.j2", ".css", ".js")):
            templates.get_template(name)
DECODERS = [msgspec.json.Decoder(kind) for kind in (Manifest, Summary)]  # reads the annotations
