"""``python -m meta``: the command line; see `meta.cli`."""

import sys

from meta.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
