"""The highest load that holds an SLO: what must hold, what one point says of it, and where to look next. No I/O."""
