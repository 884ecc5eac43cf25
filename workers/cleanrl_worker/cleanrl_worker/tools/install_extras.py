"""The installer of requirement sets under the name that documents of others use."""

from __future__ import annotations

import sys

from mosaic_extras.install_extras import main

if __name__ == "__main__":
    sys.exit(main())
