"""``python -m optimizer``."""

from optimizer.cli import main

main()
