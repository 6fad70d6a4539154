"""One consumer of a subscription: attaching, reading, acknowledging, sleeping, detaching.

One class for each way of reading: `ActiveAttachment` and `SharedAttachment`. The incomplete chunked
messages of a consumer are here, too: their expiry, and the acknowledgement of all parts as one.
"""
