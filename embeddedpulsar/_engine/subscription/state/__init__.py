"""The replicated state of a subscription: commands in, state out.

Pure: no file, clock, lock or thread, and nothing of the subscription outside of this folder. Here are the
acknowledgements, the consumers, what Shared and Key_Shared assigned, the sticky key selectors, and the
snapshot.
"""
