"""The coverage table in the documentation is what the engines do."""

import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location(
    "coverage_table", Path(__file__).with_name("coverage.py")
)
coverage = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(coverage)


@pytest.mark.skipif(not coverage.PATH.exists(), reason="the documentation is not beside the tests")
def test_the_table_is_current():
    message = "run packages/sql-compact/tests/rows/coverage.py and commit the page"
    assert coverage.PATH.read_text() == coverage.document(), message
