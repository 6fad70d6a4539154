"""One consumer's hold on its subscription.

Attaching, reading, acknowledging, sleeping, detaching. One class for each way of reading.
"""
