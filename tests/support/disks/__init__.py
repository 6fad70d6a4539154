"""Disks for tests: one whose calls fail, one that loses power, and the images a power loss may leave."""
