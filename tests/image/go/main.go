// The Go worker of tests/image: the module for Kafka of Testcontainers, unchanged, with an image of ours in the place of theirs.
//
//	library IMAGE RECORDS
//
// It starts a container, sends RECORDS records, reads them back and prints a line for each that it read, below a line with the seconds
// of the start. It judges nothing: libraries.py compares.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/testcontainers/testcontainers-go"
	"github.com/testcontainers/testcontainers-go/modules/kafka"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	topic     = "records"
	timeLimit = 90 * time.Second
	readLimit = 30 * time.Second
)

func main() {
	records, err := strconv.Atoi(os.Args[2])
	if err == nil {
		err = run(os.Args[1], records)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(image string, records int) error {
	ctx, cancel := context.WithTimeout(context.Background(), timeLimit)
	defer cancel()
	begin := time.Now()
	container, err := kafka.Run(ctx, image, kafka.WithClusterID("4L6g3nShT-eMCtK--X86sw"))
	defer func() {
		if err := testcontainers.TerminateContainer(container); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
	}()
	if err != nil {
		return err
	}
	fmt.Printf("started %.1f\n", time.Since(begin).Seconds())
	brokers, err := container.Brokers(ctx)
	if err != nil {
		return err
	}
	if err := send(ctx, brokers, records); err != nil {
		return err
	}
	return read(ctx, brokers, records)
}

func send(ctx context.Context, brokers []string, records int) error {
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.AllowAutoTopicCreation(), kgo.DefaultProduceTopic(topic))
	if err != nil {
		return err
	}
	defer client.Close()
	batch := make([]*kgo.Record, records)
	for number := range batch {
		batch[number] = kgo.KeyStringRecord(fmt.Sprint("key ", number), fmt.Sprint("record ", number))
	}
	return client.ProduceSync(ctx, batch...).FirstErr()
}

func read(ctx context.Context, brokers []string, records int) error {
	ctx, cancel := context.WithTimeout(ctx, readLimit)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.ConsumerGroup("readers"),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return err
	}
	defer client.Close()
	for found := 0; found < records; {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return err
		}
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Println(string(record.Value))
			found++
		})
	}
	return nil
}
