"""Drivers: small programs that offer the same commands for one Kafka client each.

A driver starts with the bootstrap address as its only argument and speaks JSON lines. It reads commands
`{"id": n, "op": name, …}` from stdin. It writes answers to stdout, `{"id": n, "result": …}` or
`{"id": n, "error": {"code": c, "message": s}}` (c is Kafka's error code, or -1 if the client has none), and events
`{"event": name, …}`. It ends at the end of stdin.

| op | arguments | result |
|---|---|---|
| `produce` | topic, records, options (see `ProduceOptions`) | per record `{partition, offset}` or `{error, message}` |
| `open` | topic, start | null, once the start position on every partition is known |
| `read` | count, timeout_ms | records, at least `count` unless the time is over |
| `close` | none | null; ends the reader of `open` |
| `committed` | group, topic | `{partition: offset}`, only those that have one |
| `join` | group, topic, options (see `MemberOptions`) | null; from then on come events |
| `commit` | none | null, once the positions after the reported records are committed |
| `pause`, `resume` | partitions of the joined topic | null; only clients that know both protocols |
| `seek` | partition, position: an offset, `beginning` or `end` | null; only the same clients |
| `leave` | none | null, once the consumer is closed |
| `create_topic` | topic, partitions, configs | null |
| `delete_topic` | topic | null |
| `topics` | none | names |
| `set_offsets` | group, topic, offsets `{partition: offset}` | null |
| `configure_group` | group, configs | null; only clients that know the consumer protocol |
| `delete_offsets`, `group_configs`, `list_groups`, `describe_group`, `describe_classic_group`, `delete_group` | see \
Groups.java | of the Java driver only: its administration of groups |
| `begin` | transactional_id, timeout_ms | null, once the id's former producer is fenced and this one has its epoch |
| `transact` | topic, values, outcome, group, offset, Java: keys | null; its outcome is `commit`, `abort` or `open` |
| `end` | none | null; closes the transactional producer |
| `read_committed` | topic, count, timeout_ms | values of partition 0, at least `count` unless the time is over |
| `visit` | connect, topic, group, values | the values; of the Java and kafkajs drivers, and of `visiting.py` |
| `topic_id`, `serves`, `delete_records` | see there | of the confluent driver only: the suite's own administration |

A transaction is a record on partition 0 for each value and, if a group is given, its offset there. `start` is
`"earliest"`, `"latest"`, `{"timestamp": ms}` or `{"offsets": {partition: offset}}`. A record is
`{"key": base64 or null, "value": base64 or null, "headers": [[name, base64 or null], …], "timestamp": ms or null,
"partition": n or null, "offset": n or null}`. Events: `ready` once at the start; of a member `assignment` with
`partitions` (all that it owns now), `record` with `record`, `trouble` with `message` (an error that the client
reported and survived).
"""
