"""Search for the highest load that meets an SLO: attainment of one load, bracketing, and the result. Pure maths."""
