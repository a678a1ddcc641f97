"""Command lines as they are pasted from articles and logs."""
