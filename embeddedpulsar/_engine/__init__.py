"""What no user imports: the store, its subscriptions and logs, their formats, and the platform below."""
