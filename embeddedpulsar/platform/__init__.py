"""What the operating system does for us: clock, files, locks, threads, wake-ups; each with a fake."""
