korvet.define({
  name = 'log_forget_producers', flags = { 'allow-oom' },
  description = 'forget producers that were silent for long, some at a time',
  keys = '@log   @open',
  args = [[
    topic_id
    expiration_ms:int a silent producer stays for at least so long, and for less than twice as long if the calls are
      frequent enough
    is_first 1 to begin with the first producer, '' to go on
  ]],
  returns = '{code, more}; more is 1 while some are left to look at: call again; may be repeated',
  bound = '100 producers a call; about',
  codes = 'GONE',
  source = 'ProducerStateManager.removeExpiredProducers',
  notes = 'The first appends of new producers forget a few as well; they go by the expiration of the last such call.',
}, function(keys, params)
  local expiration_ms = params.expiration_ms
  local meta = redis.call('HMGET', keys[2], 'topic_id', 'end')
  if meta[1] ~= params.topic_id then
    return { code.GONE, 0 }
  end
  local notes = producer.notes(keys[3])
  local known = redis.call('HLEN', keys[3]) + redis.call('HLEN', keys[6])
  redis.call('ZCARD', keys[4])
  redis.call('ZCARD', keys[5])
  -- Each hash has a field of the empty name.
  if known <= 2 and expiration_ms == notes.expiration_ms then
    return { code.NONE, 0 }
  end
  if expiration_ms > notes.expiration_ms then
    -- Batches below this end are only as old as the former expiration.
    notes.old_end = '0'
  end
  notes.expiration_ms = expiration_ms
  if params.is_first ~= '' then
    notes.cursor = '0'
  end
  producer.forget(keys[3], notes, meta[2], log.STEP) -- first write
  log.make_transaction_keys(keys)
  log.sweep_transactions(keys, log.STEP)
  return { code.NONE, notes.cursor == '0' and 0 or 1 }
end)
