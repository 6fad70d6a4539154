"""Which consumer gets which entries: one dispatcher for each subscription type.

The reading of assigned entries and the choice of the sleeping consumers to wake are here, too.
"""
