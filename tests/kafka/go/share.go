// Share consumers of scripts/chaosrun/queue: members.py describes their work, jobs.py the job, in the first argument.
package main

import (
	"context"
	"encoding/json"
	"io"
	"log"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

type job struct {
	Bootstrap     string
	Journal       string
	Names         []string
	Topics        []string
	Group         string
	RecordsAtOnce int32 `json:"records_at_once"`
	WorkMs        int64 `json:"work_ms"`
}

type event map[string]any

type partition struct {
	topic string
	index int32
}

type member struct {
	job     job
	name    string
	journal *os.File
	mutex   sync.Mutex
	errors  map[partition]string // of the acknowledgements since the last poll
}

func main() {
	var job job
	if err := json.Unmarshal([]byte(os.Args[1]), &job); err != nil {
		log.Fatal(err)
	}
	journal, err := os.OpenFile(job.Journal, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		log.Fatal(err)
	}
	stopped, stop := context.WithCancel(context.Background())
	var members sync.WaitGroup
	for _, name := range job.Names {
		members.Go(func() { (&member{job: job, name: name, journal: journal, errors: map[partition]string{}}).run(stopped) })
	}
	// stdin carries no commands; only its end counts.
	if _, err := io.Copy(io.Discard, os.Stdin); err != nil {
		log.Fatal(err)
	}
	stop()
	members.Wait()
}

func (m *member) write(kind string, fields event) {
	fields["event"], fields["at_us"], fields["client"] = kind, time.Now().UnixMicro(), m.name
	line, err := json.Marshal(fields)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := m.journal.Write(append(line, '\n')); err != nil {
		log.Fatal(err)
	}
}

func (m *member) acknowledged(_ *kgo.Client, results kgo.ShareAckResults) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, result := range results {
		text := ""
		if result.Err != nil {
			text = result.Err.Error()
		}
		m.errors[partition{result.Topic, result.Partition}] += text
	}
}

func (m *member) run(stopped context.Context) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(m.job.Bootstrap),
		kgo.ClientID(m.name),
		kgo.ShareGroup(m.job.Group),
		kgo.ConsumeTopics(m.job.Topics...),
		kgo.ShareMaxRecords(m.job.RecordsAtOnce),
		kgo.ShareMaxRecordsStrict(),
		kgo.ShareAckCallback(m.acknowledged),
		kgo.WithLogger(kgo.BasicLogger(os.Stderr, kgo.LogLevelWarn, nil)),
		// After a ShareFetch without an answer for 5 s more than this, the client never fetches from that broker again.
		kgo.FetchMaxWait(30*time.Second),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	for stopped.Err() == nil {
		records := client.PollFetches(stopped).Records()
		if len(records) > 0 {
			m.settle(client, records)
		}
	}
}

func (m *member) settle(client *kgo.Client, records []*kgo.Record) {
	m.mutex.Lock()
	m.errors = map[partition]string{}
	m.mutex.Unlock()
	for _, record := range records {
		m.write("taken", event{
			"group": m.job.Group, "partition": []any{record.Topic, record.Partition}, "offset": record.Offset,
			"value": string(record.Value), "deliveries": record.DeliveryCount(),
		})
		time.Sleep(time.Duration(m.job.WorkMs) * time.Millisecond)
		status, _ := kind(record)
		record.Ack(status)
	}
	failed := "no answer"
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := client.FlushAcks(ctx); err != nil {
		failed = err.Error()
	}
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for _, record := range records {
		text, answered := m.errors[partition{record.Topic, record.Partition}]
		if !answered {
			text = failed
		}
		_, name := kind(record)
		m.write("settled", event{
			"group": m.job.Group, "value": string(record.Value), "kind": name, "error": text,
		})
	}
}

func kind(record *kgo.Record) (kgo.AckStatus, string) {
	value := string(record.Value)
	number, err := strconv.Atoi(value[strings.LastIndex(value, ":")+1:])
	if err != nil {
		log.Fatal(err)
	}
	switch number %= 40; {
	case number == 1:
		return kgo.AckReject, "reject"
	case number == 2 || (number == 3 && record.DeliveryCount() == 1):
		return kgo.AckRelease, "release"
	}
	return kgo.AckAccept, "accept"
}
