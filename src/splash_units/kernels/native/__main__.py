"""Build the CPU kernel ahead of its first use: `python -m splash_units.kernels.native`."""

import sys
import time

from splash_units.kernels import native
from splash_units.kernels.native.toolchain import Unavailable


def main() -> int:
    start = time.perf_counter()
    try:
        outcome = native.attempt()
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    if isinstance(outcome, Unavailable):
        print(f"no CPU kernel: {outcome}", file=sys.stderr)
        if outcome.compiler_output:
            print(f"\n{outcome.compiler_output}", file=sys.stderr)
        return 1
    seconds = time.perf_counter() - start
    print(f"{outcome.library}\n{outcome.instruction_set()}, ready after {seconds:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
