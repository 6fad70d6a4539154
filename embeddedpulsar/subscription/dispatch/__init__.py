"""Which consumer gets which entries.

One dispatcher for each subscription type, reading what was assigned, and which sleeping consumers are
woken.
"""
