"""The command `splash`: one file for each group of verbs."""

import atexit
import gc
import sys


def main() -> None:
    """Entry point of the installed command."""
    try:
        from splash_units.lab.cli.app import app
    except ModuleNotFoundError as missing:
        sys.exit(
            f"splash: {missing.name} is missing; install it all: pip install 'splash-units[lab]'"
        )
    # Python ends with a search for garbage through all that was imported: half a second for torch.
    atexit.register(gc.freeze)
    app()
