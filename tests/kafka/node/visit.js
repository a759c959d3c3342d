// The command `visit`: write values at a secured listener, and read them as a member of a group. With `seconds` it writes
// one value after another for that time, too.
'use strict'

const { readFileSync } = require('node:fs')
const { Kafka, logLevel } = require('kafkajs')

const WITHIN_MS = 60000
const PAUSE_MS = 50
// kafkajs logs in anew so long before a session ends; by default ten seconds, which is longer than a test's session.
const REAUTHENTICATION_MS = 2000

function secured({ bootstrap, protocol, ca, cert, key, mechanism, user, password, token }) {
  const settings = { brokers: [bootstrap], logLevel: logLevel.NOTHING, retry: { retries: 2 }, connectionTimeout: 10000 }
  settings.reauthenticationThreshold = REAUTHENTICATION_MS
  if (protocol.endsWith('SSL')) settings.ssl = ca === null ? true : { ca: [readFileSync(ca)] }
  if (cert !== null) Object.assign(settings.ssl, { cert: readFileSync(cert), key: readFileSync(key) })
  if (mechanism === 'OAUTHBEARER') {
    settings.sasl = { mechanism: 'oauthbearer', oauthBearerProvider: async () => ({ value: token }) }
  } else if (mechanism !== null) {
    settings.sasl = { mechanism: mechanism.toLowerCase(), username: user, password }
  }
  return new Kafka(settings)
}

async function visit({ connect, topic, group, values, seconds = 0 }) {
  const kafka = secured(connect)
  const producer = kafka.producer()
  try {
    await producer.connect()
    if (values.length > 0) await producer.send({ topic, messages: values.map((value) => ({ value })) })
    for (const ends = Date.now() + 1000 * seconds; Date.now() < ends; ) {
      values.push(`load-${values.length}`)
      await producer.send({ topic, messages: [{ value: values.at(-1) }] })
      await new Promise((resolve) => setTimeout(resolve, PAUSE_MS))
    }
  } finally {
    await producer.disconnect()
  }
  const consumer = kafka.consumer({ groupId: group, maxWaitTimeInMs: 100 })
  const found = []
  try {
    await consumer.connect()
    await consumer.subscribe({ topic, fromBeginning: true })
    await new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`${found.length} of ${values.length} values`)), WITHIN_MS)
      const eachMessage = async ({ message }) => {
        found.push(message.value.toString())
        if (found.length < values.length) return
        clearTimeout(timer)
        resolve()
      }
      consumer.run({ eachMessage }).catch(reject)
    })
  } finally {
    await consumer.disconnect()
  }
  return found
}

module.exports = { visit }
