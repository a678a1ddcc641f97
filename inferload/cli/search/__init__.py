"""`inferload search`: the highest load that holds an SLO, and plain sweeps over loads."""
