"""``python -m captum_pda`` is the command ``captum-pda``."""

import sys

from captum_pda.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
