"""What most programs do: JSON of 300 to 1,000 bytes, keys, properties, several consumers."""
