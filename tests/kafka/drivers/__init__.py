"""Drivers: small programs that put one Kafka client each behind the same commands.

A driver is started with the bootstrap address as its only argument and speaks JSON lines. On stdin come commands
`{"id": n, "op": name, …}`. On stdout go answers, `{"id": n, "result": …}` or `{"id": n, "error": {"code": c,
"message": s}}` (c is Kafka's error code, -1 where the client has none), and events `{"event": name, …}`. End of stdin
ends the driver.

| op | arguments | result |
|---|---|---|
| `produce` | topic, records, options (see `ProduceOptions`) | per record `{partition, offset}` or `{error, message}` |
| `open` | topic, start | null, once the start position on every partition is known |
| `read` | count, timeout_ms | records, at least `count` unless the time is over |
| `close` | none | null; ends what `open` began |
| `committed` | group, topic | `{partition: offset}`, only those that have one |
| `join` | group, topic, options (see `MemberOptions`) | null; from then on come events |
| `commit` | none | null, once the positions after the reported records are committed |
| `pause`, `resume` | partitions of the topic that was joined for | null; of the clients that know both protocols |
| `seek` | partition, position: an offset, `beginning` or `end` | null; of those clients |
| `leave` | none | null, once the consumer is closed |
| `create_topic` | topic, partitions, configs | null |
| `delete_topic` | topic | null |
| `topics` | none | names |
| `set_offsets` | group, topic, offsets `{partition: offset}` | null |
| `configure_group` | group, configs | null; of the clients that know the consumer protocol |
| `delete_offsets`, `group_configs`, `list_groups`, `describe_group`, `describe_classic_group`, `delete_group` | see \
Groups.java | of the Java driver only: its administration of groups |
| `begin` | transactional_id, timeout_ms | null, once the id's former producer is fenced and this one has its epoch |
| `transact` | topic, values, outcome, group, offset, Java: keys | null; its outcome is `commit`, `abort` or `open` |
| `end` | none | null; closes the transactional producer |
| `read_committed` | topic, count, timeout_ms | values of partition 0, at least `count` unless the time is over |
| `topic_id`, `serves`, `delete_records` | see there | of the confluent driver only: the suite's own administration |

A transaction is a record on partition 0 for each value and, where a group is given, its offset there. `start` is
`"earliest"`, `"latest"`, `{"timestamp": ms}` or `{"offsets": {partition: offset}}`. A record is
`{"key": base64 or null, "value": base64 or null, "headers": [[name, base64 or null], …], "timestamp": ms or null,
"partition": n or null, "offset": n or null}`. Events: `ready` once at the start; of a member `assignment` with
`partitions` (all it owns now), `record` with `record`, `trouble` with `message` (an error the client reported and
survived).
"""
