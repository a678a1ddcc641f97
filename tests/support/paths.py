"""Places in the tree that tests read."""

from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
GOLDEN = TESTS / "golden"
DATA = TESTS / "data"
