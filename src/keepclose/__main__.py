"""Run the command line with `python -m keepclose`."""

from __future__ import annotations

from keepclose.cli.main import run

if __name__ == "__main__":
    run()
