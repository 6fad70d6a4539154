"""The operating system: clock, files, locks, threads and wake-ups, each replaceable in a test."""
