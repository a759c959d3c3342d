// Reads partition 0 of a topic with franz-go, and writes a line for each record: offset, timestamp, and SHA-256 of key,
// space and value.
//
// Arguments: broker, topic, start (an offset, or @ and milliseconds), number of records, isolation level.
package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	topic, start := os.Args[2], os.Args[3]
	number, err := strconv.ParseInt(strings.TrimPrefix(start, "@"), 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	count, err := strconv.Atoi(os.Args[4])
	if err != nil {
		log.Fatal(err)
	}
	offset, isolation := kgo.NewOffset().At(number), kgo.ReadUncommitted()
	if strings.HasPrefix(start, "@") {
		offset = kgo.NewOffset().AfterMilli(number)
	}
	if os.Args[5] == "read_committed" {
		isolation = kgo.ReadCommitted()
	}
	client, err := kgo.NewClient(
		kgo.SeedBrokers(os.Args[1]),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{topic: {0: offset}}),
		kgo.FetchIsolationLevel(isolation),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for count > 0 {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			log.Fatal(err)
		}
		for _, record := range fetches.Records() {
			digest := sha256.Sum256(bytes.Join([][]byte{record.Key, record.Value}, []byte(" ")))
			fmt.Printf("%d %d %x\n", record.Offset, record.Timestamp.UnixMilli(), digest)
			count--
		}
	}
}
