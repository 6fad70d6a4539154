"""The producer of a partitioned topic: a plain producer for each partition, and the routing."""
