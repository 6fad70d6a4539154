"""Producers.

From `Producer.send` over the queue and the batch container to the entry in the topic's log, and the
callbacks that follow. `partitioned` has the producer of a partitioned topic, `bulk` whole columns.
"""
