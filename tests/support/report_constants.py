"""What every report needs and no run changes, made once by the fork server that imports this module."""

import msgspec
from inferload.analysis.pages import shell

from inferload.results.documents.manifest_document import Manifest
from inferload.results.documents.summary_document import Summary

shell.packed_plotly()
for name in ("report.html.j2", "page.html.j2", "macros.html.j2", "report.css", "report.js"):
    shell.environment(escape=True).get_template(name)
shell.environment(escape=False).get_template("report.md.j2")
DECODERS = [msgspec.json.Decoder(kind) for kind in (Manifest, Summary)]  # reads the annotations
