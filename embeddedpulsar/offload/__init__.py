"""Moving closed ledgers to a location outside of the store, as Parquet."""
