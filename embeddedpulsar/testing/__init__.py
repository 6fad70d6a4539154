"""For the tests of applications: the check of a whole store (docs/testing.md)."""
