"""A store: topics found by name, each with its log, its producers, its subscriptions and its policies."""
