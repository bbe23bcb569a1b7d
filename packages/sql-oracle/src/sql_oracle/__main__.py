"""``python -m sql_oracle``."""

import sys

from sql_oracle.cli import main

sys.exit(main())
