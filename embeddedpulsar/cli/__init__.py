"""Programs for the command line: `python -m embeddedpulsar.cli.check` checks a store."""
