"""Makes `tests.fakes` importable; the tests themselves need no package."""
