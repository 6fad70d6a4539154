"""What Pulsar promises, promise by promise."""
