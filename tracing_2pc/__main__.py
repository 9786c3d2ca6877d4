"""`python -m tracing_2pc`."""

import sys

from tracing_2pc.cli import main

sys.exit(main())
