-- Idempotent producers: the state of each producer id that appended to a partition.
--
-- The producers hash: producer id -> `producer_epoch leader_epoch|first,last,base|...`: the epochs of its last append
-- and, newest first, the sequences and the base offset of its last five batches. A `*` after the leader epoch says that
-- the producer has an open transaction here. A marker of a new producer epoch stands there as a batch with sequences
-- -1, so the producer's next batch begins at 0.
--
-- Kafka forgets a producer that was silent for producer.id.expiration.ms, a day unless set. No append here asks for the
-- time. Now and then a function notes the log's end and the time. Batches below an end that was noted a day ago are
-- older than a day. The field of the empty name holds these notes, `cursor old_end noted_ms noted_end expiration_ms`:
-- a producer whose last batch lies below old_end may be forgotten.
-- Source: ProducerStateEntry, ProducerAppendInfo, ProducerStateManager.removeExpiredProducers
local producer = {}

producer.SEQUENCES = 2147483648
producer.EXPIRATION_MS = 86400000
-- Producers that the first append of a new one looks at: more than one, so silent ones cannot pile up.
producer.SWEEP = 10

-- Judge a batch by its producer's state. Returns a code; for a duplicate also the base offset of the first append. Then
-- come the text of the four batches to keep after it, and '*' if the producer has an open transaction.
-- Returns nil if the state cannot be read.
function producer.judge(state, epoch, first, last, leader_epoch, is_next)
  local known_epoch, known_leader_epoch, open, kept, newest =
    string.match(state, '^(%-?%d+) (%d+)(%*?)(|%-?%d+,(%-?%d+),%d+|?[^|]*|?[^|]*|?[^|]*)')
  if not known_epoch then
    return nil
  elseif epoch ~= known_epoch then
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
  -- If history went back, acknowledged batches may be lost, and the producer cannot send them again. A refusal of the
  -- next batch ends an idempotent librdkafka producer that tried it twice. So it goes on after the gap, once.
  -- Batches after one that failed, or is under way and may fail, wait for its second try;
  -- a front-end reports that by is_next.
  if not is_next and gap < producer.SEQUENCES / 2 and known_leader_epoch ~= leader_epoch then
    return code.NONE, nil, kept, open
  end
  return code.OUT_OF_ORDER_SEQUENCE_NUMBER, nil, nil, open
end

-- Judge an append by its arguments. Returns a code; for a duplicate also the base offset of the first append. For a
-- batch that may be appended it returns the producer's state after it, and true if that is a new one.
-- With args[11] the batch must be the next one of a known producer.
function producer.admit(producers_key, args, leader_epoch, base)
  local producer_id, epoch, first = args[7], args[8], tonumber(args[9])
  local last = (first + args[3] - 1) % producer.SEQUENCES
  local state = redis.call('HGET', producers_key, producer_id)
  local kept = ''
  if state then
    local outcome, first_base, open
    outcome, first_base, kept, open = producer.judge(state, epoch, first, last, leader_epoch, args[11])
    if not outcome then
      value.unreadable(producers_key, producer_id)
    elseif outcome ~= code.NONE or first_base then
      return outcome, first_base
    elseif open == '*' then
      return code.INVALID_TXN_STATE
    end
  elseif args[11] then
    return code.OUT_OF_ORDER_SEQUENCE_NUMBER
  end
  return code.NONE, nil, string.format('%s %s|%d,%d,%s%s', epoch, leader_epoch, first, last, base, kept), not state
end

-- The notes of the producers hash, by name; see the head of this file.
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

-- Note the end of the log if the last note is old enough. Forget some silent producers without an open transaction.
-- The notes' cursor moves on; it is '0' when all producers were looked at.
function producer.forget(producers_key, notes, log_end, count)
  local now_ms = value.now_ms()
  notes.noted_ms = math.min(notes.noted_ms, now_ms)
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

-- Forget a few producers that were silent for long; a new producer's first append does this.
function producer.sweep(producers_key, log_end)
  producer.forget(producers_key, producer.notes(producers_key), log_end, producer.SWEEP)
end
