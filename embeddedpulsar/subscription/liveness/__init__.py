"""Which consumers of a subscription are alive.

Keep-alives, the processes that each process watches, and the commands that detach what is gone.
"""
