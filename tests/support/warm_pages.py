"""What each page needs, made once by the fork server that imports this: compiled templates and the packed plotly.js."""

from inferload.analysis.pages import shell

shell.packed_plotly()
for kind in ("html", "md"):
    templates = shell.environment(escape=kind == "html")
    for name in templates.list_templates(filter_func=lambda name: name.endswith(f".{kind}.j2")):  # noqa: B023
        templates.get_template(name)
