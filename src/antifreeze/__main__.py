"""`python -m antifreeze` is the command `antifreeze`."""

import sys

from antifreeze.cli import main

sys.exit(main())
