"""Apache Spark's batch source over mapped segments."""
