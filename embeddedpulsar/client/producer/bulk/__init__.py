"""Whole columns of messages, published entry by entry: `Producer.send_many`, `Producer.send_arrow`."""
