"""The operating system: clock, files, locks, threads and wake-ups, each replaceable in a test.

A locked section is written ``try: lock.acquire(); ... finally: lock.release()``; docs/contributing.md, under
"Locked sections", says why.
"""
