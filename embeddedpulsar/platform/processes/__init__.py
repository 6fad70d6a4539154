"""The processes of a store: waking them, waiting for a wake-up, and which of them are alive."""
