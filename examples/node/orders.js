// Ten orders are produced, and a group reads them. BROKER names another broker.
const { Kafka, logLevel } = require("kafkajs");

const kafka = new Kafka({ brokers: [process.env.BROKER ?? "127.0.0.1:9092"], logLevel: logLevel.ERROR });
const topic = "example-node";
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

async function consume() {
  const consumer = kafka.consumer({ groupId: "example-node" });
  await consumer.connect();
  await consumer.subscribe({ topic, fromBeginning: true });
  let read = 0;
  let amount = 0;
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error));
    consumer
      .run({
        eachMessage: async ({ message }) => {
          amount += JSON.parse(message.value).amount;
          if (++read === ORDERS) resolve();
        },
      })
      .catch(reject);
  });
  // It commits what it has read.
  await consumer.disconnect();
  console.log(`read ${read} orders of ${amount} in all`);
}

async function main() {
  const admin = kafka.admin();
  await admin.connect();
  await admin.createTopics({ topics: [{ topic, numPartitions: 3 }] });
  await admin.disconnect();
  await produce();
  await consume();
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
