"""Work that a store does beside its users: trimming, expiry, quotas, compaction."""
