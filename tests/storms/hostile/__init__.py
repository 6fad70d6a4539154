"""The hostile storm.

Kills, stops, freezes, interrupts and removed files while producers and consumers work.
"""
