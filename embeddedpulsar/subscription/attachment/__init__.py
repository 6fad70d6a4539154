"""One consumer of a subscription: attaching, reading, acknowledging, sleeping, detaching.

One class for each way of reading: `ActiveAttachment` and `SharedAttachment`.
"""
