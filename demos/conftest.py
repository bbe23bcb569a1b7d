"""Makes the demos' package and the tests' reference importable, as running a demo does."""

import sys
from pathlib import Path

_DEMOS = Path(__file__).parent
for _folder in (_DEMOS / "tests", _DEMOS):
    if str(_folder) not in sys.path:
        sys.path.insert(0, str(_folder))
