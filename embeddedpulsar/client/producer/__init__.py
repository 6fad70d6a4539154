"""Producers: from `Producer.send` to the entry in the log of the topic, and the callbacks that follow.

`partitioned_publisher` has the producer of a partitioned topic, `bulk_publisher` whole columns.
"""
