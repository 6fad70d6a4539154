"""Whole columns of messages, published entry by entry: `Producer.send_many` and `Producer.send_arrow`."""
