"""The journal.

How the processes of a store keep one small state, of a topic or a subscription, in step.
"""
