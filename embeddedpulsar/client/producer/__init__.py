"""Producers: from `Producer.send` to the entry in the log of the topic, and the callbacks that follow.

`partitioned` has the producer of a partitioned topic, `bulk` whole columns.
"""
