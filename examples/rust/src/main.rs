//! Ten orders are produced, and read again by their offsets. BROKER names another broker.
//! rskafka is pure Rust and has no groups; the crate rdkafka has them, and builds librdkafka.

use std::collections::BTreeMap;
use std::error::Error;

use rskafka::client::error::{Error as ClientError, ProtocolError};
use rskafka::client::partition::{Compression, UnknownTopicHandling};
use rskafka::client::ClientBuilder;
use rskafka::record::Record;

const TOPIC: &str = "example-rust";
const ORDERS: usize = 10;

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn Error>> {
    let broker = std::env::var("BROKER").unwrap_or_else(|_| "127.0.0.1:9092".to_owned());
    let client = ClientBuilder::new(vec![broker]).build().await?;
    match client.controller_client()?.create_topic(TOPIC, 1, 1, 30_000).await {
        Ok(_) => {}
        Err(ClientError::ServerError { protocol_error: ProtocolError::TopicAlreadyExists, .. }) => {}
        Err(error) => return Err(error.into()),
    }
    let partition = client.partition_client(TOPIC, 0, UnknownTopicHandling::Retry).await?;

    let orders = (0..ORDERS).map(|number| Record {
        key: Some(format!("customer-{}", number % 3).into_bytes()),
        value: Some(format!("order {number}").into_bytes()),
        headers: BTreeMap::new(),
        timestamp: chrono::Utc::now(),
    });
    let offsets = partition.produce(orders.collect(), Compression::NoCompression).await?;

    let mut next = offsets[0];
    let mut read = 0;
    while read < ORDERS {
        let (records, _) = partition.fetch_records(next, 1..1_000_000, 1_000).await?;
        if let Some(last) = records.last() {
            next = last.offset + 1;
        }
        read += records.len();
    }
    println!("read {read} orders");
    Ok(())
}
