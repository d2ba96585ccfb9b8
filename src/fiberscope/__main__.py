"""Run the command line with ``python -m fiberscope``."""

from fiberscope.cli.main import main

main()
