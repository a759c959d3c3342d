// Orders are added up in Redis exactly once, however often this is killed. BROKER and REDIS name other servers.
// The Redis has korvet's library: korvet functions load --redis URL. docs/apply.md has the rules that this keeps.
const { createClient } = require("@redis/client");
const { Kafka, logLevel } = require("kafkajs");
const { randomUUID } = require("node:crypto");

const kafka = new Kafka({ brokers: [process.env.BROKER ?? "127.0.0.1:9092"], logLevel: logLevel.ERROR });
const redis = createClient({ url: process.env.REDIS ?? "redis://127.0.0.1:6379" });
const topic = "example-node-applied";
const APPLICATION = "example-node-applied";
const [APPLIED, AMOUNT, COUNT] = ["applied", "amount", "count"].map((name) => `{example-node}:${name}`);
const ORDERS = 10;

async function produce() {
  const producer = kafka.producer({ idempotent: true });
  await producer.connect();
  const messages = Array.from({ length: ORDERS }, (_, number) => ({
    key: `customer-${number % 3}`,
    value: JSON.stringify({ order: number, amount: 10 * number }),
  }));
  await producer.send({ topic, messages });
  await producer.disconnect();
}

// kafkajs shows neither topic ids nor leader epochs: the name stands for the id, and -1 for the epoch.
async function claim(partition) {
  const owner = randomUUID().replaceAll("-", "");
  const whose = [APPLICATION, topic, `${partition}`, owner];
  const [epoch, offset] = await redis.fCall("korvet_apply_claim", { keys: [APPLIED], arguments: whose });
  return { whose, place: [epoch, offset] };
}

async function apply({ whose, place }, message) {
  const { amount } = JSON.parse(message.value);
  const commands = [
    ["INCRBY", AMOUNT, `${amount}`],
    ["INCRBY", COUNT, "1"],
  ];
  const words = commands.flatMap((command) => [`${command.length}`, ...command]);
  const places = [...place, -1, message.offset].map(String);
  return redis.fCall("korvet_apply", { keys: [APPLIED, AMOUNT, COUNT], arguments: [...whose, ...places, ...words] });
}

async function consume(ends) {
  // Without committed offsets each partition begins at its start, and its first record leads to the place.
  const consumer = kafka.consumer({ groupId: "example-node-applied" });
  const claims = new Map();
  consumer.on(consumer.events.GROUP_JOIN, () => claims.clear());
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  const isDone = () => [...ends].every(([partition, end]) => claims.get(partition)?.place[1] >= end - 1);
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer
      .run({
        autoCommit: false,
        eachMessage: async ({ partition, message }) => {
          const owned = claims.get(partition);
          if (owned === undefined) {
            const claimed = await claim(partition);
            claims.set(partition, claimed);
            consumer.seek({ topic, partition, offset: `${claimed.place[1] + 1}` });
          } else {
            const [status, ...rest] = await apply(owned, message);
            if (status === "APPLIED" || status === "SKIPPED") {
              owned.place = rest;
            } else if (status === "MOVED" || status === "FENCED") {
              claims.delete(partition);
              consumer.seek({ topic, partition, offset: message.offset });
            } else {
              reject(new Error(`order at offset ${message.offset}: ${status} ${rest}`));
            }
          }
          if (isDone()) resolve();
        },
      })
      .catch(reject);
  });
  await consumer.disconnect();
}

async function main() {
  await redis.connect();
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic, numPartitions: 3 }] });
  await produce();
  const offsets = (await admin.fetchTopicOffsets(topic)).filter(({ high, low }) => Number(high) > Number(low));
  await admin.disconnect();
  await consume(new Map(offsets.map(({ partition, high }) => [partition, Number(high)])));
  const inTopic = offsets.reduce((count, { high, low }) => count + Number(high) - Number(low), 0);
  const inRedis = Number(await redis.get(COUNT));
  console.log(`Redis has ${inRedis} orders of ${await redis.get(AMOUNT)}, the topic ${inTopic}`);
  console.log(inRedis === inTopic ? "both have the same" : "they differ");
  await redis.close();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
