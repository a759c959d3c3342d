// Driver of kafkajs: the commands of tests/kafka/drivers/__init__.py over JSON lines.
'use strict'

const { randomUUID } = require('node:crypto')
const readline = require('node:readline')
const { CompressionCodecs, CompressionTypes, Kafka, logLevel } = require('kafkajs')
const lz4 = require('lz4-napi')
const snappy = require('kafkajs-snappy')
const zstd = require('@bokuweb/zstd-wasm')
const { visit } = require('./visit')

const TIMEOUT_MS = 30000
const TOPIC_ALREADY_EXISTS = 36

// kafkajs has only gzip itself; its manual says how to plug in the other codecs.
CompressionCodecs[CompressionTypes.Snappy] = snappy
CompressionCodecs[CompressionTypes.LZ4] = () => ({
  compress: (encoder) => lz4.compressFrame(encoder.buffer),
  decompress: (buffer) => lz4.decompressFrame(buffer),
})
CompressionCodecs[CompressionTypes.ZSTD] = () => ({
  compress: async (encoder) => Buffer.from(zstd.compress(encoder.buffer)),
  decompress: async (buffer) => Buffer.from(zstd.decompress(buffer)),
})

const COMPRESSION = {
  none: CompressionTypes.None,
  gzip: CompressionTypes.GZIP,
  snappy: CompressionTypes.Snappy,
  lz4: CompressionTypes.LZ4,
  zstd: CompressionTypes.ZSTD,
}

const kafka = new Kafka({ brokers: [process.argv[2]], logLevel: logLevel.NOTHING })
let reader = null
let member = null

const writeLine = (message) => process.stdout.write(JSON.stringify(message) + '\n')
const emit = (event, fields) => writeLine({ event, ...fields })
const encode = (bytes) => (bytes === null || bytes === undefined ? null : Buffer.from(bytes).toString('base64'))
const decode = (text) => (text === null ? null : Buffer.from(text, 'base64'))

// A kafkajs record from JSON. The values of a header name that comes twice become an array, as kafkajs requires.
function toMessage(record) {
  const message = { key: decode(record.key), value: decode(record.value) }
  if (record.partition !== null) message.partition = record.partition
  if (record.timestamp !== null) message.timestamp = String(record.timestamp)
  if (record.headers.length > 0) {
    message.headers = {}
    for (const [name, value] of record.headers) {
      const before = message.headers[name]
      message.headers[name] = before === undefined ? decode(value) : [].concat(before, decode(value))
    }
  }
  return message
}

function fromMessage(partition, message) {
  const headers = []
  for (const [name, value] of Object.entries(message.headers || {})) {
    for (const one of Array.isArray(value) ? value : [value]) headers.push([name, encode(one)])
  }
  return {
    key: encode(message.key),
    value: encode(message.value),
    headers,
    timestamp: Number(message.timestamp),
    partition,
    offset: Number(message.offset),
  }
}

async function withAdmin(work) {
  const admin = kafka.admin()
  await admin.connect()
  try {
    return await work(admin)
  } finally {
    await admin.disconnect()
  }
}

// kafkajs makes one batch per partition and call, so groups of about batchBytes bound the size of a batch.
function groupsOf(records, batchBytes) {
  if (batchBytes === null) return [records]
  const groups = []
  let size = Infinity
  for (const record of records) {
    const length = ((record.value || '').length * 3) / 4
    if (size + length > batchBytes) {
      groups.push([])
      size = 0
    }
    groups[groups.length - 1].push(record)
    size += length
  }
  return groups
}

async function send(producer, topic, records, options) {
  const settings = { topic, messages: records.map(toMessage) }
  if (options.compression !== null) settings.compression = COMPRESSION[options.compression]
  if (options.acks !== null) settings.acks = options.acks
  let answers
  try {
    answers = await producer.send(settings)
  } catch (error) {
    return records.map(() => ({ error: errorCode(error), message: error.message }))
  }
  const next = new Map(answers.map((answer) => [answer.partition, Number(answer.baseOffset)]))
  return records.map(({ partition }) => {
    if (partition === null || !next.has(partition)) return { partition, offset: null }
    const offset = next.get(partition)
    next.set(partition, offset + 1)
    return { partition, offset }
  })
}

async function produce({ topic, records, options }) {
  const settings = options.idempotent === null ? {} : { idempotent: options.idempotent }
  // Its own five retries may end within five seconds, and on a busy machine a dead front-end is shown for longer. Other
  // clients try for minutes.
  if (options.one_by_one) settings.retry = { retries: 8 }
  const producer = kafka.producer(settings)
  await producer.connect()
  try {
    const groups = options.one_by_one ? records.map((record) => [record]) : groupsOf(records, options.batch_bytes)
    const outcomes = []
    for (const group of groups) outcomes.push(...(await send(producer, topic, group, options)))
    return outcomes
  } finally {
    await producer.disconnect()
  }
}

// Resolves after the consumer has looked up the ends of its partitions, as it does before its first fetch.
function endsLookedUp(consumer) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(() => reject(new Error(`no ListOffsets in ${TIMEOUT_MS} ms`)), TIMEOUT_MS)
    consumer.on(consumer.events.REQUEST, ({ payload }) => {
      if (payload.apiName !== 'ListOffsets') return
      clearTimeout(timer)
      resolve()
    })
  })
}

// kafkajs reads only in groups, so a reader is the only member of a group, and seeks after it has joined.
async function open({ topic, start }) {
  const positions = await startOffsets(topic, start)
  const consumer = kafka.consumer({ groupId: `reader-${randomUUID()}` })
  reader = { consumer, records: [], arrived: () => {} }
  const mine = reader
  await consumer.connect()
  await consumer.subscribe({ topic, fromBeginning: start === 'earliest' })
  const positioned = start === 'latest' ? endsLookedUp(consumer) : Promise.resolve()
  await consumer.run({
    autoCommit: false,
    eachMessage: async ({ partition, message }) => {
      mine.records.push(fromMessage(partition, message))
      mine.arrived()
    },
  })
  for (const { partition, offset } of positions) consumer.seek({ topic, partition, offset })
  await positioned
}

async function startOffsets(topic, start) {
  if (start.offsets) {
    return Object.entries(start.offsets).map(([partition, offset]) => ({
      partition: Number(partition),
      offset: String(offset),
    }))
  }
  if (start.timestamp === undefined) return []
  return withAdmin((admin) => admin.fetchTopicOffsetsByTimestamp(topic, start.timestamp))
}

async function read({ count, timeout_ms: timeoutMs }) {
  const mine = reader
  await new Promise((resolve) => {
    const timer = setTimeout(resolve, timeoutMs)
    mine.arrived = () => {
      if (mine.records.length < count) return
      clearTimeout(timer)
      resolve()
    }
    mine.arrived()
  })
  return mine.records.splice(0)
}

// The consumer waits for the fetch in flight, five seconds if no record comes; other calls do not wait.
async function close() {
  reader.consumer.disconnect().catch((error) => emit('trouble', { message: error.message }))
  reader = null
}

async function committed({ group, topic }) {
  const [found] = await withAdmin((admin) => admin.fetchOffsets({ groupId: group, topics: [topic] }))
  const known = found.partitions.filter(({ offset }) => Number(offset) >= 0)
  return Object.fromEntries(known.map(({ partition, offset }) => [partition, Number(offset)]))
}

async function join({ group, topic, options }) {
  const settings = { groupId: group }
  if (options.session_timeout_ms !== null) settings.sessionTimeout = options.session_timeout_ms
  const consumer = kafka.consumer(settings)
  member = { consumer, topic, positions: new Map(), left: options.max_records === null ? Infinity : options.max_records }
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    emit('assignment', { partitions: [...(payload.memberAssignment[topic] || [])].sort((a, b) => a - b) })
  })
  consumer.on(consumer.events.CRASH, ({ payload }) => emit('trouble', { message: payload.error.message }))
  await consumer.connect()
  const fromBeginning = options.reset === null ? {} : { fromBeginning: options.reset === 'earliest' }
  await consumer.subscribe({ topic, ...fromBeginning })
  await consumer.run({
    ...(options.auto_commit === null ? {} : { autoCommit: options.auto_commit }),
    eachMessage: async ({ partition, message }) => report(partition, message),
  })
}

function report(partition, message) {
  if (member === null || member.left === 0) return
  member.left -= 1
  member.positions.set(partition, Number(message.offset) + 1)
  emit('record', { record: fromMessage(partition, message) })
}

async function commit() {
  const { consumer, topic, positions } = member
  await consumer.commitOffsets(
    [...positions].map(([partition, offset]) => ({ topic, partition, offset: String(offset) })),
  )
}

async function leave() {
  await member.consumer.disconnect()
  member = null
}

async function createTopic({ topic, partitions, configs }) {
  const created = await withAdmin((admin) =>
    admin.createTopics({
      topics: [
        {
          topic,
          numPartitions: partitions,
          configEntries: Object.entries(configs).map(([name, value]) => ({ name, value })),
        },
      ],
    }),
  )
  // kafkajs reports this one error only in its answer.
  if (!created) throw Object.assign(new Error('the topic exists'), { code: TOPIC_ALREADY_EXISTS })
}

const setOffsets = ({ group, topic, offsets }) =>
  withAdmin((admin) =>
    admin.setOffsets({
      groupId: group,
      topic,
      partitions: Object.entries(offsets).map(([partition, offset]) => ({
        partition: Number(partition),
        offset: String(offset),
      })),
    }),
  ).then(() => null)

const OPERATIONS = {
  produce,
  open,
  read,
  close,
  committed,
  join,
  commit,
  leave,
  create_topic: createTopic,
  delete_topic: ({ topic }) => withAdmin((admin) => admin.deleteTopics({ topics: [topic] })).then(() => null),
  topics: () => withAdmin((admin) => admin.listTopics()),
  set_offsets: setOffsets,
  visit,
}

function errorCode(error) {
  for (let cause = error; cause; cause = cause.cause || cause.originalError) {
    if (typeof cause.code === 'number') return cause.code
    if (cause.errors && cause.errors.length > 0) return errorCode(cause.errors[0])
  }
  return -1
}

async function answer({ id, op, ...args }) {
  try {
    const result = await OPERATIONS[op](args)
    writeLine({ id, result: result === undefined ? null : result })
  } catch (error) {
    writeLine({ id, error: { code: errorCode(error), message: `${error.name}: ${error.message}` } })
  }
}

async function main() {
  await zstd.init()
  emit('ready', {})
  for await (const line of readline.createInterface({ input: process.stdin })) await answer(JSON.parse(line))
  if (member !== null) await leave()
  process.exit(0)
}

main()
