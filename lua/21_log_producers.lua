-- Idempotent producers: what is remembered of each producer id that appended to a partition.
--
-- The producers hash: producer id -> `producer_epoch leader_epoch|first,last,base|...`: the epochs of its last append
-- and, newest first, the sequences and the base offset of its last five batches. Behind the leader epoch is a `*` while
-- the producer has an open transaction here. A marker of a new producer epoch stands there as a batch whose sequences
-- are -1, so that the next one begins at 0. Kafka forgets a producer that was silent for producer.id.expiration.ms, a
-- day unless set. Here no append asks for the time: now and then the end of the log is noted, and what lies below an
-- end that was noted so long ago is that old. The field of the empty name holds these notes:
-- `cursor old_end noted_ms noted_end expiration_ms`, where all below old_end is old enough to be forgotten.
-- Source: ProducerStateEntry, ProducerAppendInfo, ProducerStateManager.removeExpiredProducers
local producer = {}

producer.SEQUENCES = 2147483648
producer.EXPIRATION_MS = 86400000
-- Producers looked at when a new one comes: more than one, so that those that came and went cannot pile up.
producer.SWEEP = 10

-- Judge a batch by its producer's state. Returns a code, the base offset of the first append where the batch is a
-- duplicate, the text of the four batches that are kept behind it, and '*' where a transaction of the producer is open.
function producer.judge(state, epoch, first, last, leader_epoch, is_next)
  local known_epoch, known_leader_epoch, open, kept, newest =
    string.match(state, '^(%-?%d+) (%d+)(%*?)(|%-?%d+,(%-?%d+),%d+|?[^|]*|?[^|]*|?[^|]*)')
  if epoch ~= known_epoch then
    if tonumber(epoch) < tonumber(known_epoch) then
      return code.INVALID_PRODUCER_EPOCH
    end
    return first == 0 and code.NONE or code.OUT_OF_ORDER_SEQUENCE_NUMBER, nil, '', open
  end
  local gap = (first - newest - 1) % producer.SEQUENCES
  if gap == 0 then
    return code.NONE, nil, kept, open
  end
  local base = string.match(state, string.format('|%d,%d,(%%d+)', first, last))
  if base then
    return code.NONE, base
  end
  -- Where history went back, batches that the producer knows to be stored may be lost. It cannot send them again, and
  -- any refusal of what comes after them ends an idempotent librdkafka producer that had to try twice: so it goes on
  -- behind the gap, once. What comes after a batch that failed waits for its second try: a front-end says so.
  if not is_next and gap < producer.SEQUENCES / 2 and known_leader_epoch ~= leader_epoch then
    return code.NONE, nil, kept, open
  end
  return code.OUT_OF_ORDER_SEQUENCE_NUMBER, nil, nil, open
end

-- Judge an append by its arguments. Returns a code, the base offset of the first append where the batch is a duplicate,
-- and, where the batch is to be appended, the producer's state after it and whether the producer is a new one.
-- With args[11] it must be the next one of a producer that is known.
function producer.admit(producers_key, args, leader_epoch, base)
  local producer_id, epoch, first = args[7], args[8], tonumber(args[9])
  local last = (first + args[3] - 1) % producer.SEQUENCES
  local state = redis.call('HGET', producers_key, producer_id)
  local kept = ''
  if state then
    local outcome, first_base, open
    outcome, first_base, kept, open = producer.judge(state, epoch, first, last, leader_epoch, args[11])
    if outcome ~= code.NONE or first_base then
      return outcome, first_base
    elseif open == '*' then
      return code.INVALID_TXN_STATE
    end
  elseif args[11] then
    return code.OUT_OF_ORDER_SEQUENCE_NUMBER
  end
  return code.NONE, nil, string.format('%s %s|%d,%d,%s%s', epoch, leader_epoch, first, last, base, kept), not state
end

-- What is noted: the cursor of the sweep, the end below which all is old enough to be forgotten, an end and when it was
-- noted, and the expiration.
function producer.notes(producers_key)
  local notes = redis.call('HGET', producers_key, '') or ''
  local cursor, old_end, noted_ms, noted_end, expiration_ms = string.match(notes, '^(%d+) (%d+) (%d+) (%d+) ?(%d*)$')
  if not cursor then
    cursor, old_end, noted_ms, noted_end = '0', '0', '0', '0'
  end
  return {
    cursor = cursor, old_end = old_end, noted_ms = tonumber(noted_ms), noted_end = noted_end,
    expiration_ms = tonumber(expiration_ms) or producer.EXPIRATION_MS,
  }
end

-- Note the end of the log where the last note is old enough, and forget some producers by these notes; not those with
-- an open transaction. The cursor comes to be where the sweep is to go on, '0' where it is through.
function producer.forget(producers_key, notes, log_end, count)
  local now_ms = value.now_ms()
  if now_ms - notes.noted_ms >= notes.expiration_ms then
    notes.old_end, notes.noted_ms, notes.noted_end = notes.noted_end, now_ms, log_end
  end
  local scanned = redis.call('HSCAN', producers_key, notes.cursor, 'COUNT', count)
  local flat = scanned[2]
  for at = 1, #flat, 2 do
    local base = string.match(flat[at + 1], '^%-?%d+ %d+|%-?%d+,%-?%d+,(%d+)')
    if base and tonumber(base) < tonumber(notes.old_end) then
      redis.call('HDEL', producers_key, flat[at])
    end
  end
  notes.cursor = scanned[1]
  redis.call(
    'HSET', producers_key, '',
    string.format(
      '%s %s %d %s %d', notes.cursor, notes.old_end, notes.noted_ms, notes.noted_end, notes.expiration_ms
    )
  )
end

-- Forget a few producers that were silent for long.
function producer.sweep(producers_key, log_end)
  producer.forget(producers_key, producer.notes(producers_key), log_end, producer.SWEEP)
end
