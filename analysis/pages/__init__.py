"""Pages: the shell that all of them share, their templates, their style and their script."""
