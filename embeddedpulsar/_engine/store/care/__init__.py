"""Care of a store as a whole: checking, repairing and backing up its files, beside those that use it."""
