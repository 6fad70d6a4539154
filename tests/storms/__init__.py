"""Storms.

Processes killed, stopped and starved, disks that lose power, damaged files, and the judges of what is
left. Run from the checkout: ``python -m tests.storms --help``.
"""
