"""Command line: one file per command, no mathematics."""
