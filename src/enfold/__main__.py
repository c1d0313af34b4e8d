"""`python -m enfold` is the `enfold` command."""

import sys

from enfold.commands.main import main

if __name__ == "__main__":
    sys.exit(main())
