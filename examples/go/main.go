// Ten orders are produced, and a group reads them. BROKER names another broker.
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	topic  = "example-go"
	orders = 10
)

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	broker := os.Getenv("BROKER")
	if broker == "" {
		broker = "127.0.0.1:9092"
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(broker),
		kgo.ConsumerGroup(topic),
		kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()),
		kgo.DisableAutoCommit(),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	if err := create(ctx, client); err != nil {
		log.Fatal(err)
	}
	if err := produce(ctx, client); err != nil {
		log.Fatal(err)
	}
	if err := consume(ctx, client); err != nil {
		log.Fatal(err)
	}
}

func create(ctx context.Context, client *kgo.Client) error {
	_, err := kadm.NewClient(client).CreateTopic(ctx, 3, 1, nil, topic)
	if errors.Is(err, kerr.TopicAlreadyExists) {
		return nil
	}
	return err
}

func produce(ctx context.Context, client *kgo.Client) error {
	var records []*kgo.Record
	for number := range orders {
		key, value := fmt.Sprintf("customer-%d", number%3), fmt.Sprintf("order %d", number)
		records = append(records, &kgo.Record{Topic: topic, Key: []byte(key), Value: []byte(value)})
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

func consume(ctx context.Context, client *kgo.Client) error {
	read := 0
	for read < orders {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		read += fetches.NumRecords()
	}
	if err := client.CommitUncommittedOffsets(ctx); err != nil {
		return err
	}
	fmt.Printf("read %d orders\n", read)
	return nil
}
