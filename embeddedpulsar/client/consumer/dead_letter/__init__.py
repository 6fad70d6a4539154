"""Dead letter and retry topics.

When a message goes there, and the producers that a consumer sends it with.
"""
