"""``korvet pipeline replay --tier``: sealed batches become records of a topic again, byte for byte and each once.

A partition is copied by a transactional producer of its own. Each of its transactions has batches and, in the group of
the replay, the offset in the source after them. So a replay that was killed anywhere goes on after the last committed
transaction. There is no other state to lose.
"""
