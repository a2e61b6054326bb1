"""The command `splash`: one file for each group of verbs."""

import sys


def main() -> None:
    """Entry point of the installed command."""
    try:
        from splash_units.lab.cli.app import app
    except ModuleNotFoundError as missing:
        sys.exit(
            f"splash: {missing.name} is missing; install it all: pip install 'splash-units[lab]'"
        )
    app()
