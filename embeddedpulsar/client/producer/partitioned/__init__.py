"""The producer of a partitioned topic.

One plain producer for each partition, and the routing between them.
"""
