"""Run the ``ranker`` command line as a module; torchrun starts this file."""

import sys

from pipelines.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
