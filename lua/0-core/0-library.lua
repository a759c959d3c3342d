#!lua name=korvet
-- The library `korvet`: all state of the broker and every decision about it, as pure functions of keys, arguments and
-- the clock. Every file of the directories in lua/, in the order of cat lua/*/*.lua, is the library; the line above is
-- its only shebang. What holds for every file:
--
-- * While the library loads, only redis.register_function exists (no string, tonumber or redis.call). So the chunk
--   itself only declares tables of constants and functions.
-- * A chunk may have 200 locals: one table per subject, functions in it.
-- * There is no rollback. A function parses, reads and checks everything, and then writes; a comment marks its first
--   write.
-- * Kafka's outcomes are data: codes of the table below, which begin most replies. An error reply means a broken
--   contract or a corrupt state.

local korvet = { VERSION = '0.7.0' }

-- The codes that begin replies: Kafka's (org.apache.kafka.common.protocol.Errors), and below zero korvet's own.
local code = {
  RESEND = -2, -- the temporary key of a placed batch is gone: send the batch again
  GONE = -3, -- the partition's topic id is absent or another: read the catalog again
  UNINDEXED = -4, -- there is no such group: put it in the index, and call again with an id for it
  RETRY = -5, -- the group's target, or what the caller made the call from, is outdated: bring it up to date, call again
  LATE = -6, -- the call waited while Redis stood still: call again, unless the client left meanwhile
  VERIFY = -7, -- no open transaction of this producer here: ask its coordinator, send again with the ordinal
  FRESH_ID = -8, -- the transactional id needs a producer id that was never used: call again with one
  LOST = -10, -- somebody deleted what stands here: write it back, if you know it, and call again
  CHECK = -9, -- see whether all members of the transaction still hold it, and call again with what you found
  NONE = 0,
  OFFSET_OUT_OF_RANGE = 1,
  UNKNOWN_TOPIC_OR_PARTITION = 3,
  COORDINATOR_LOAD_IN_PROGRESS = 14,
  COORDINATOR_NOT_AVAILABLE = 15,
  NOT_COORDINATOR = 16,
  ILLEGAL_GENERATION = 22,
  INCONSISTENT_GROUP_PROTOCOL = 23,
  INVALID_GROUP_ID = 24,
  UNKNOWN_MEMBER_ID = 25,
  INVALID_SESSION_TIMEOUT = 26,
  REBALANCE_IN_PROGRESS = 27,
  UNSUPPORTED_VERSION = 35,
  TOPIC_ALREADY_EXISTS = 36,
  INVALID_PARTITIONS = 37,
  INVALID_CONFIG = 40,
  INVALID_REQUEST = 42,
  POLICY_VIOLATION = 44,
  OUT_OF_ORDER_SEQUENCE_NUMBER = 45,
  INVALID_PRODUCER_EPOCH = 47,
  INVALID_TXN_STATE = 48,
  INVALID_PRODUCER_ID_MAPPING = 49,
  CONCURRENT_TRANSACTIONS = 51,
  NON_EMPTY_GROUP = 68,
  GROUP_ID_NOT_FOUND = 69,
  FENCED_LEADER_EPOCH = 74,
  MEMBER_ID_REQUIRED = 79,
  GROUP_MAX_SIZE_REACHED = 81,
  FENCED_INSTANCE_ID = 82,
  GROUP_SUBSCRIBED_TO_TOPIC = 86,
  PRODUCER_FENCED = 90,
  RESOURCE_NOT_FOUND = 91,
  DUPLICATE_RESOURCE = 92,
  TRANSACTIONAL_ID_NOT_FOUND = 105,
  FENCED_MEMBER_EPOCH = 110,
  UNRELEASED_INSTANCE_ID = 111,
  UNSUPPORTED_ASSIGNOR = 112,
  STALE_MEMBER_EPOCH = 113,
  TRANSACTION_ABORTABLE = 120,
  INVALID_RECORD_STATE = 121,
}
