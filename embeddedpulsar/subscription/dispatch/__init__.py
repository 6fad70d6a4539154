"""Which consumer gets which entries: one dispatcher for each subscription type.

Reading what was assigned, and which sleeping consumers are woken, are here, too.
"""
