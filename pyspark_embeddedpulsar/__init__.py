"""Found by Spark, which imports every top-level module named ``pyspark_*`` when it meets an unknown format.

It does so for every session, so this must be cheap and must not fail, whatever is installed.
"""

try:
    from embeddedpulsar.spark.data_source import DefaultSource as DefaultSource
except ImportError as _error:
    # No data source then: the format is unknown, and this text says why.
    UNAVAILABLE = str(_error)
